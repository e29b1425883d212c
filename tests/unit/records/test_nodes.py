"""One run in a folder for each host: recognised, read as one, and never mixed up with several."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli.main import app
from pitstop.errors import RecordError
from pitstop.records.host.nodes import is_one_run, node_folders
from pitstop.records.store import is_run, read_run
from pitstop.report.export.trace import trace_events
from pitstop_probe import RecordWriter
from pitstop_probe.clock import Step


def write_rank(
    folder: Path,
    rank: int,
    world_size: int,
    *,
    name: str = "run",
    at_s: float = 1000.0,
    **more: object,
) -> None:
    """Append an attempt of a rank with a few steps, as if another process had written it."""
    path = folder / f"rank-{rank}.jsonl"
    before = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    writer = RecordWriter(str(path), {"name": name, **more}, lambda: 0)
    for index in range(8):
        step = Step(index, index * 1000)
        step.wall_us = 1000
        writer.step(step)
    writer.close()
    head, _, rest = path.read_text().partition("\n")
    own = {"rank": rank, "world_size": world_size, "unix_s": at_s, "host": folder.name}
    path.write_text(
        f"{before}{json.dumps({**json.loads(head), **own}, separators=(',', ':'))}\n{rest}"
    )


@pytest.fixture
def gathered(tmp_path: Path) -> Path:
    for rank in range(4):
        folder = tmp_path / "gathered" / f"node-{'ab'[rank // 2]}"
        write_rank(folder, rank, 4)
    return tmp_path / "gathered"


def test_a_folder_with_one_folder_a_host_is_one_run(gathered: Path) -> None:
    assert is_run(gathered)
    record = read_run(gathered)
    assert [rank.rank for rank in record.ranks] == [0, 1, 2, 3]
    assert [rank.attempts[-1].host for rank in record.ranks] == ["node-a"] * 2 + ["node-b"] * 2
    assert record.notes == ()


def test_folders_of_hosts_can_be_named_one_by_one(gathered: Path) -> None:
    folders = [str(gathered / name) for name in ("node-a", "node-b")]
    done = CliRunner().invoke(app, ["doctor", *folders, "--json", "-"])
    alone = CliRunner().invoke(app, ["doctor", str(gathered), "--json", "-"])
    assert done.exit_code == alone.exit_code == 0
    said, said_alone = json.loads(done.output), json.loads(alone.output)
    for verdict in (said, said_alone):
        verdict.pop("source", None)
    assert said == said_alone


def test_the_folder_of_one_host_alone_says_what_is_missing(gathered: Path) -> None:
    assert read_run(gathered / "node-b").notes == ("2 of 4 ranks left no record: 0, 1",)


def test_several_whole_runs_side_by_side_are_not_one(tmp_path: Path) -> None:
    for name in ("first", "second"):
        for rank in range(2):
            write_rank(tmp_path / name, rank, 2)
    assert node_folders(tmp_path) == []
    with pytest.raises(RecordError, match="holds no run record"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "other", [{"name": "another"}, {"world_size": 8}, {"rank": 1}], ids=["name", "ranks", "twice"]
)
def test_parts_of_different_runs_are_not_one(tmp_path: Path, other: dict[str, int | str]) -> None:
    write_rank(tmp_path / "a", 1, 4)
    values: dict[str, int | str] = {"rank": 2, "world_size": 4, "name": "run", **other}
    write_rank(
        tmp_path / "b", int(values["rank"]), int(values["world_size"]), name=str(values["name"])
    )
    assert not is_one_run([tmp_path / "a", tmp_path / "b"])


def test_a_damaged_part_is_no_part(gathered: Path) -> None:
    (gathered / "node-b" / "rank-3.jsonl").write_text('{"kind":"run"\n')
    assert not is_one_run([gathered / "node-a", gathered / "node-b"])


def test_ranks_that_a_smaller_launch_did_without_are_left_out(tmp_path: Path) -> None:
    for rank in range(4):
        write_rank(tmp_path, rank, 4)
    for rank in range(2):
        write_rank(tmp_path, rank, 2, at_s=2000.0)
    record = read_run(tmp_path)
    assert [rank.rank for rank in record.ranks] == [0, 1]
    assert record.notes == ("the run went on with 2 ranks; of those before, 2 are left out: 2, 3",)


def test_a_clock_that_differs_is_put_right(tmp_path: Path) -> None:
    clock = {"reference": "node-a", "offset_s": -2.5, "error_s": 0.001}
    write_rank(tmp_path, 0, 2)
    write_rank(tmp_path, 1, 2, at_s=1002.5, clock=clock)
    first, second = (rank.attempts[-1] for rank in read_run(tmp_path).ranks)
    assert first.aligned_unix_s == second.aligned_unix_s == 1000.0
    assert "clock" not in second.about


@pytest.mark.parametrize(
    "clock", [7, {}, {"offset_s": 1}, {"reference": "a", "offset_s": "nan", "error_s": 0}]
)
def test_a_clock_that_cannot_be_is_not_believed(tmp_path: Path, clock: object) -> None:
    write_rank(tmp_path, 0, 1, clock=clock)
    attempt = read_run(tmp_path).first.attempts[-1]
    assert attempt.clock is None
    assert attempt.aligned_unix_s == 1000.0


def test_ranks_of_two_hosts_lie_on_one_time_line(tmp_path: Path) -> None:
    clock = {"reference": "a", "offset_s": -2.5, "error_s": 0.001}
    write_rank(tmp_path / "runs" / "a", 0, 2)
    write_rank(tmp_path / "runs" / "b", 1, 2, at_s=1002.501, clock=clock)
    events = list(trace_events(read_run(tmp_path / "runs")))
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 (a)", "rank 1 (b)"]
    begins = [event["ts"] for event in events if event["name"] == "step 0"]
    assert begins == [0, 1000]
