"""Datasets in words."""

from pitstop.report.data import made_clips_report
from pitstop.workloads.deblur.synthetic import MadeClips


def made(*, spikes: bool) -> MadeClips:
    return MadeClips(
        root="data/clips",
        clips={"train": 4, "test": 2},
        frames=12,
        height=96,
        width=128,
        spike_height=48 if spikes else None,
        spike_width=64 if spikes else None,
        seed=3,
        size_bytes=5 << 20,
        took_s=2.0,
    )


def test_result_first_and_next_command_last() -> None:
    assert made_clips_report(made(spikes=True)).plain == (
        "made 4 train and 2 test clips of 12 frames of 96x128\n"
        "data/clips, spikes of 48x64, 5.00 MiB, seed 3, in 2.00 s\n"
        "next: pitstop config check configs/deblur/small.yaml data.root=data/clips"
    )


def test_missing_spikes_are_said() -> None:
    assert "data/clips, no spikes, 5.00 MiB" in made_clips_report(made(spikes=False)).plain
