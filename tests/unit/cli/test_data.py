"""`pitstop data`: clips made, checked, packed and weighed; words for people, records, codes."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli.data import app
from pitstop.config.host_limits import HostLimits
from pitstop.errors import ConfigError, DataError, MissingPackage

SMALL = ["--train-clips", "1", "--test-clips", "1", "--frames", "2", "--size", "16x32"]


def test_clips_are_made_and_the_next_command_is_named(tmp_path: Path) -> None:
    root = tmp_path / "my clips"
    done = CliRunner().invoke(app, ["make", "deblur", str(root), *SMALL])
    assert done.exit_code == 0, done.output
    head, facts, closing = done.output.splitlines()
    assert head == "made 1 train and 1 test clips of 2 frames of 16x32"
    assert facts.startswith(f"{root}, spikes of 8x16, ")
    assert closing == f"next: pitstop config check configs/deblur/small.yaml 'data.root={root}'"
    assert sorted(path.name for path in root.iterdir()) == ["config.yaml", "test", "train"]


def test_the_record_goes_to_stdout_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["make", "deblur", str(tmp_path / "c"), *SMALL, "--json", "-"])
    record = json.loads(done.stdout)
    assert record["kind"] == "MadeClips"
    assert (record["height"], record["width"], record["seed"]) == (16, 32, 0)
    assert record["clips"] == {"train": 1, "test": 1}


@pytest.mark.parametrize("size", ["16", "16x", "axb", "16x32x3"])
def test_a_size_that_is_none_is_refused(tmp_path: Path, size: str) -> None:
    line = ["make", "deblur", str(tmp_path / "c"), "--size", size]
    with pytest.raises(DataError, match=f"such as 96x128, not {size}"):
        CliRunner().invoke(app, line, catch_exceptions=False)
    assert not (tmp_path / "c").exists()


def test_a_missing_image_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "pitstop.workloads.deblur.synthetic", raising=False)
    with pytest.raises(MissingPackage, match=r"making clips needs pillow; .*pip install pillow"):
        CliRunner().invoke(app, ["make", "deblur", str(tmp_path / "c")], catch_exceptions=False)


CONFIG = """
data: {root: ROOT, crop: 16, clip_len: 2}
loader: {workers: 0}
model: {kind: vrt}
train: {batch_size: 2, steps: 1}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "clips"
    done = CliRunner().invoke(app, ["make", "deblur", str(root), *SMALL])
    assert done.exit_code == 0, done.output
    return root


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(made, tmp_path / "clips"))


@pytest.fixture
def config(made: Path, tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.replace("ROOT", str(made)))
    return path


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_a_whole_dataset_passes_and_packing_is_next(made: Path) -> None:
    code, words = run("check", made)
    assert code == 0
    head, *_, closing = words.splitlines()
    assert head == f"{made}: everything can be read"
    assert closing == f"next: pitstop data pack {made}"
    assert "train: 1 clip, 2 blur, 2 sharp, 2 spike" in words


def test_trouble_in_a_dataset_is_named_and_the_code_is_1(own: Path) -> None:
    broken = own / "train" / "MADE0000_07_00" / "sharp" / "000000.png"
    broken.write_bytes(b"")
    code, words = run("check", own)
    assert code == 1
    assert words.startswith(f"{own}: 1 problem\n  {broken} is not an image: it is empty\n")
    code, text = run("check", own, "--json", "-")
    assert code == 1
    assert json.loads(text)["problems"] == [f"{broken} is not an image: it is empty"]


def test_a_dataset_is_checked_by_its_configuration_too(config: Path, own: Path) -> None:
    assert run("check", config)[0] == 0
    shutil.rmtree(own / "test")
    code, words = run("check", config, f"data.root={own}")
    assert code == 1
    assert f"there is no folder {own / 'test'}" in words


def test_a_pack_is_made_beside_its_dataset_and_trained_on(own: Path, config: Path) -> None:
    target = own.with_name("clips.pack")
    code, words = run("pack", own)
    assert code == 0
    head, facts, closing = words.splitlines()
    assert head.startswith("packed 13 files into ")
    assert facts.startswith(f"{target}: facts 23 B, blur ")
    assert closing == f"next: pitstop train CONFIG data.root={target}"
    assert run("check", target)[0] == 0
    assert run("stats", config, f"data.root={target}")[0] == 0
    with pytest.raises(DataError, match="is there already"):
        run("pack", own)


def test_a_pack_is_made_from_a_configuration_with_the_files_own_bytes(
    config: Path, tmp_path: Path
) -> None:
    target = tmp_path / "a.pack"
    code, text = run("pack", config, "--output", target, "--frames", "encoded", "--json", "-")
    assert code == 0
    record = json.loads(text)
    assert (record["kind"], record["path"], record["members"]) == ("PackSummary", str(target), 13)
    assert target.stat().st_size == record["size_bytes"]


def test_settings_for_a_dataset_itself_are_refused(made: Path) -> None:
    with pytest.raises(ConfigError, match=r"crop=1 has no effect: .* is a dataset"):
        run("check", made, "crop=1")


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    for command in ("check", "pack"):
        with pytest.raises(DataError, match="holds no clips"):
            run(command, tmp_path)
        with pytest.raises(ConfigError, match="nowhere"):
            run(command, tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_memory_is_added_up_before_training(config: Path) -> None:
    settings = ("loader.workers=6", "loader.prefetch=3", "cache.budget=1GiB")
    code, words = run("stats", config, *settings, "--ranks", "3")
    assert code == 0
    assert words.startswith("fits: data take up to ")
    assert "3 ranks x 2 workers x 3 ahead = 18 batches" in words
    assert "once for the host, not for each process" in words
    assert words.splitlines()[-1] == f"next: pitstop train {config}"
    code, text = run("stats", config, *settings, "--ranks", "3", "--json", "-")
    record = json.loads(text)
    # Two frames of 16 x 16, blurred and sharp, of three bytes; the clip's number; what is fresh.
    sample_bytes = 2 * 2 * 16 * 16 * 3 + 8 + 2
    assert record["sample_bytes"] == sample_bytes
    assert record["waiting_bytes"] == 18 * 2 * sample_bytes


def test_data_that_cannot_fit_are_said_with_code_1(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = HostLimits(cores=2, memory_bytes=1_000)
    monkeypatch.setattr("pitstop.data.loader.sample_bytes.read_host_limits", lambda: tiny)
    code, words = run("stats", config)
    assert code == 1
    assert words.startswith("does not fit: ")
    assert words.splitlines()[-1] == "next: lower train.batch_size, the largest part"


def test_a_workload_without_stored_data_says_so(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        name = "other"

    monkeypatch.setattr("pitstop.cli.evaluate.load_task", lambda *_: (None, Other()))
    with pytest.raises(ConfigError, match="the workload other cannot be checked"):
        run("check", config)
    with pytest.raises(ConfigError, match="the workload other does not pack"):
        run("pack", config)


def test_a_flipped_bit_in_raw_spikes_is_seen_by_sums(own: Path, tmp_path: Path) -> None:
    sums = tmp_path / "clips.sha256"
    first = CliRunner().invoke(app, ["check", str(own), "--sums", str(sums)])
    assert first.exit_code == 0, first.output
    assert f"wrote the checksums of {len(sums.read_text().splitlines())} files" in first.output
    again = CliRunner().invoke(app, ["check", str(own), "--sums", str(sums)])
    assert again.exit_code == 0, again.output

    raw = next(own.rglob("*.dat"))
    data = bytearray(raw.read_bytes())
    data[len(data) // 2] ^= 1
    raw.write_bytes(data)
    unseen = CliRunner().invoke(app, ["check", str(own)])
    assert unseen.exit_code == 0
    assert "a changed bit in raw files is not seen without checksums" in unseen.output
    seen = CliRunner().invoke(app, ["check", str(own), "--sums", str(sums), "--json", "-"])
    assert seen.exit_code == 1
    assert json.loads(seen.stdout)["problems"] == [f"{raw} has changed: its checksum differs"]


def test_sums_of_a_pack_are_its_own(own: Path, tmp_path: Path) -> None:
    packed = CliRunner().invoke(app, ["pack", str(own), "--output", str(tmp_path / "a.pack")])
    assert packed.exit_code == 0, packed.output
    with pytest.raises(ConfigError, match="--sums has no effect"):
        CliRunner().invoke(
            app,
            ["check", str(tmp_path / "a.pack"), "--sums", str(tmp_path / "x")],
            catch_exceptions=False,
        )
