"""Datasets as text."""

from dataclasses import replace
from io import StringIO

from pitstop.data.check import DataCheck, SplitFound
from pitstop.data.host_memory import DataStats, LoaderPlan, Seen, plan_memory
from pitstop.data.pack import PackSummary
from pitstop.report.data import check_report, made_clips_report, pack_report, stats_report
from pitstop.report.terminal import make_console
from pitstop.workloads.deblur.synthetic import MadeClips

GIB = 1 << 30
MIB = 1 << 20


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


CHECKED = DataCheck(
    root="data/my clips",
    workload="deblur",
    packed=False,
    splits={
        "train": SplitFound(sequences=1, files={"blur": 1200, "sharp": 1200}, size_bytes=3 << 20)
    },
    problems=(),
    notes=(),
    took_s=1.0,
)


def test_a_whole_dataset_is_said_to_be_so() -> None:
    assert check_report(CHECKED).plain == (
        "data/my clips: everything can be read\n"
        "train: 1 clip, 1,200 blur, 1,200 sharp, 3.00 MiB\n"
        "every image decoded, in 1.00 s\n"
        "next: pitstop data pack 'data/my clips'"
    )


def test_problems_come_first_and_a_screenful_is_enough() -> None:
    problems = tuple(f"file {at} is damaged" for at in range(25))
    text = check_report(replace(CHECKED, problems=problems, notes=("spikes were left out",)))
    lines = text.plain.splitlines()
    assert lines[:2] == ["data/my clips: 25 problems", "  file 0 is damaged"]
    assert lines[21] == "  and 5 more; --json PATH writes them all"
    assert "note: spikes were left out" in lines
    assert not lines[-1].startswith("next")
    packed = check_report(replace(CHECKED, packed=True)).plain
    assert packed.endswith("every checksum compared, in 1.00 s")


def test_a_pack_is_said_with_its_size_and_how_to_use_it() -> None:
    summary = PackSummary(
        path="clips.pack",
        workload="deblur",
        members=12,
        size_bytes=4 << 20,
        source_bytes=2 << 20,
        field_bytes={"blur": 3 << 20, "spike": 1 << 20},
        took_s=0.5,
    )
    assert pack_report(summary).plain == (
        "packed 12 files into 4.00 MiB (the files have 2.00 MiB)\n"
        "clips.pack: blur 3.00 MiB, spike 1.00 MiB, in 500 ms\n"
        "next: pitstop train CONFIG data.root=clips.pack"
    )


PLAN = LoaderPlan(
    ranks=3,
    workers=12,
    prefetch=4,
    prefetch_bytes=None,
    batch_size=1,
    pinned=False,
    cache_budget_bytes=290 * GIB,
)
SEEN = Seen(
    samples=2_222,
    tensor_bytes=(133 * MIB,),
    samples_read=8,
    samples_damaged=0,
    decoded_bytes=580 * GIB,
    host_limit_bytes=256 * GIB,
    shm_free_bytes=128 * GIB,
)


def stats(plan: LoaderPlan = PLAN, seen: Seen = SEEN) -> DataStats:
    return plan_memory("run.yaml", plan, seen, drop_last=True)


def rendered(of: DataStats) -> str:
    file = StringIO()
    make_console(file).print(stats_report(of))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def test_a_cache_too_large_is_counted_once_and_named() -> None:
    """The guides counted it once for each of 108 workers."""
    text = rendered(stats())
    assert text.startswith("does not fit: data take up to 309 GiB of the 256 GiB this host grants")
    assert "3 ranks x 12 workers x 4 ahead = 144 batches" in text
    assert "cache.budget 290 GiB, once for the host, not for each process" in text
    assert "it holds 50.0% of the 580 GiB of decoded frames" in text
    assert text.splitlines()[-1] == "next: lower cache.budget, the largest part"


def test_every_part_of_the_sum_is_explained() -> None:
    plan = replace(PLAN, cache_budget_bytes=0, pinned=True, prefetch_bytes=10 * GIB, batch_size=2)
    text = rendered(stats(plan))
    assert text.startswith("fits: ")
    assert "none: cache.budget is 0" in text
    assert "rounded up to powers of two" in text
    assert "no more than loader.prefetch_bytes 10.0 GiB" in text
    assert text.splitlines()[-1] == "next: pitstop train run.yaml"
    assert "none: loader.workers is 0" in rendered(stats(replace(PLAN, workers=0)))


def test_too_little_shared_memory_is_said_even_if_memory_is_enough() -> None:
    small = replace(SEEN, shm_free_bytes=64 * MIB, decoded_bytes=None)
    text = rendered(stats(replace(PLAN, cache_budget_bytes=GIB), small))
    assert text.startswith("fits: ")
    assert "do not fit /dev/shm, which has 64.0 MiB free" in text.splitlines()[-1]


def test_waiting_batches_can_be_the_largest_part() -> None:
    plan = replace(PLAN, cache_budget_bytes=0, prefetch=400)
    assert "next: lower loader.prefetch or loader.workers" in rendered(stats(plan))
