"""Measuring from inside one's own code: parts are named, results are the same to the bit."""

import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pitstop
from pitstop.records.run import RankRecord
from pitstop.records.script import Setup, Work
from pitstop.records.store import decode, read_run
from pitstop_probe.attach import current
from pitstop_probe.measurement import Measurement
from tests.fork_server.client import run_python


def train(steps: int = 30, *, evaluate: bool = False) -> list[torch.Tensor]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(40, 8), torch.randn(40, 1))
    made = 0
    while made < steps:
        model.train()
        for x, y in DataLoader(data, batch_size=4, shuffle=True):
            with pitstop.span("own part"):
                loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            made += 1
        if evaluate:
            model.eval()
            with torch.no_grad():
                for x, _ in DataLoader(data, batch_size=40):
                    model(x)
    return [parameter.detach().clone() for parameter in model.parameters()]


def measured(folder: Path, *, evaluate: bool = False) -> tuple[RankRecord, list[torch.Tensor]]:
    with pitstop.attach(folder):
        weights = train(evaluate=evaluate)
    return read_run(folder).first, weights


def test_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    _, watched = measured(tmp_path / "run")
    bare = train()
    assert all(torch.equal(a, b) for a, b in zip(watched, bare, strict=True))


def test_parts_are_named_and_add_up(tmp_path: Path) -> None:
    rank, _ = measured(tmp_path / "run")
    assert rank.steps is not None
    assert rank.notes == ()
    names = {path[0] for path in rank.paths}
    assert names >= {"data", "own part", "zero_grad", "forward", "backward", "clip", "optimizer"}
    steps = list(rank.steps)[5:]
    assert all((step.samples, step.micro_steps) == (4, 1) for step in steps)
    # Of steps below half a millisecond only some are divided.
    divided = [step for step in steps if step.host_us]
    assert len(divided) >= 5
    assert all(step.unaccounted_us == 0 for step in divided)


def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something was compiled, no step is slowed down; and other tests compile."""
    for module in ("measurement", "deep.deep_profile"):
        monkeypatch.setattr(f"pitstop_probe.{module}.compile_counts", lambda: None)


def test_what_the_script_uses_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_compiled(monkeypatch)
    rank, _ = measured(tmp_path / "run")
    setup = next(decode(r, Setup) for r in rank.readings if r.kind == "setup")
    assert setup.device == "cpu"
    assert setup.models == ("Sequential",)
    assert setup.optimizers == ("SGD(for-loop)",)
    assert setup.parameters == 8 * 16 + 16 + 16 + 1
    assert setup.loaders[0].workers == 0
    assert all(loader.trains for loader in setup.loaders)
    work = next(decode(r, Work) for r in rank.readings if r.kind == "work")
    forward = 2 * 4 * (8 * 16 + 16 * 1)
    backward = 2 * 4 * (8 * 16 + 2 * 16 * 1)  # the first layer needs no gradient of its input
    assert work.flops == forward + backward


def test_an_evaluation_is_told_apart_from_the_steps(tmp_path: Path) -> None:
    rank, _ = measured(tmp_path / "run", evaluate=True)
    evaluations = [event for event in rank.events if event.name == "evaluation"]
    assert len(evaluations) == 2  # one after each pass but the last, whose step has no end
    assert rank.steps is not None
    assert {step.micro_steps for step in rank.steps} == {1}


def test_every_wrapper_is_taken_off_again(tmp_path: Path) -> None:
    watched = (torch.autograd, "backward"), (torch, "save"), (nn.utils, "clip_grad_norm_")
    watched = (*watched, (nn.Sequential, "__call__"), (DataLoader, "__iter__"))
    before = [getattr(owner, name) for owner, name in watched]
    measured(tmp_path / "run")
    assert [getattr(owner, name) for owner, name in watched] == before


def under_way() -> Measurement:
    measurement = current()
    assert measurement is not None
    return measurement


# Classes and modules that are observed, and torch's own lists of hooks.
OBSERVED = (
    ("torch", "Tensor"),
    ("torch", "autograd"),
    ("torch", "distributed"),
    ("torch.amp", "GradScaler"),
    ("torch.nn", "Module"),
    ("torch.nn", "Sequential"),
    ("torch.nn", "utils"),
    ("torch.nn.utils", "clip_grad"),
    ("torch.optim", "Optimizer"),
    ("torch.optim.optimizer", "_global_optimizer_pre_hooks"),
    ("torch.optim.optimizer", "_global_optimizer_post_hooks"),
    ("torch.utils.checkpoint", "CheckpointFunction"),
    ("torch.utils.checkpoint", "_CheckpointFrame"),
    ("torch.utils.data", "DataLoader"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter"),
    ("torch.utils.data._utils.fetch", "_IterableDatasetFetcher"),
    ("torch.utils.data._utils.fetch", "_MapDatasetFetcher"),
)


def everything_of_torch() -> list[dict[Any, Any]]:
    """What lies in the places that are observed."""
    found: list[dict[Any, Any]] = [{"save": torch.save}]
    for module, name in OBSERVED:
        place = getattr(import_module(module), name)
        # Hooks are numbered anew each time they are put on.
        hooks = dict(enumerate(place.values())) if isinstance(place, dict) else dict(vars(place))
        found.append(hooks)
    return found


def test_a_pause_leaves_nothing_on_and_its_steps_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_compiled(monkeypatch)
    train(1)  # torch imports parts of its own with the first optimizer
    before, threads = everything_of_torch(), threading.active_count()
    with pitstop.attach(tmp_path / "run"):
        measurement = under_way()
        train(30)
        on = everything_of_torch()
        assert on != before
        for _ in range(2):
            measurement.pause()
            measurement.pause()
            assert everything_of_torch() == before
            assert threading.active_count() == threads
            train(30)
            measurement.resume()
            measurement.resume()
            assert everything_of_torch() == on
            assert threading.active_count() == threads + 1
        train(30)
    assert everything_of_torch() == before
    rank = read_run(tmp_path / "run").first
    assert rank.steps is not None
    assert rank.notes == ()
    # Number 29 was under way when the pause came; four were slowed down to see more of them.
    left_out = (4, 5, 6, 7, 29)
    assert [step.index for step in rank.steps] == [n for n in range(59) if n not in left_out]
    after = rank.steps.host_us[rank.steps.index >= 30]
    seen = {path[0] for path, us in zip(rank.paths, after.T, strict=True) if (us > 0).any()}
    assert seen >= {"data", "forward", "backward", "zero_grad", "clip", "optimizer"}


def test_a_pause_in_a_step_that_is_looked_into_leaves_no_half_of_a_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_compiled(monkeypatch)
    model = nn.Sequential(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pitstop.attach(tmp_path / "run"):
        measurement = under_way()
        for update in range(30):
            if update in (5, 8):  # the steps 4 and 7 have begun
                measurement.pause()
                measurement.resume()
            model(torch.zeros(2, 8)).sum().backward()
            optimizer.step()
    rank = read_run(tmp_path / "run").first
    assert rank.is_finished
    assert rank.steps is not None
    assert len(rank.steps) == 27
    assert {"modules", "work"}.isdisjoint(reading.kind for reading in rank.readings)


def test_a_pause_can_be_the_end(tmp_path: Path) -> None:
    with pitstop.attach(tmp_path / "run"):
        measurement = under_way()
        train(30)
        measurement.pause()
    rank = read_run(tmp_path / "run").first
    assert rank.is_finished
    assert rank.steps is not None
    assert rank.steps[-1].index == 28


def test_two_trainings_one_after_the_other_have_two_records(tmp_path: Path) -> None:
    for name in ("one", "two"):
        rank, _ = measured(tmp_path / name)
        assert rank.steps is not None
        assert len(rank.steps) > 20


def test_a_folder_with_a_record_gets_a_numbered_neighbour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("run", "run-2", "run-3"):
        with pitstop.attach(tmp_path / "run") as attached:
            train()
        assert attached.folder == tmp_path / name
        assert read_run(tmp_path / name).first.is_finished
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in said] == [
        str(tmp_path / "run-2"),
        str(tmp_path / "run-3"),
    ]


def test_a_rank_shares_the_folder_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(tmp_path / "run")
    monkeypatch.setenv("RANK", "1")
    with pitstop.attach(tmp_path / "run") as attached:
        train()
    assert attached.folder == tmp_path / "run"
    assert sorted(path.name for path in attached.folder.glob("rank-*")) == [
        "rank-0.jsonl",
        "rank-1.jsonl",
    ]


def test_where_no_record_can_be_the_training_goes_on_and_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    for place in (taken, taken / "below", Path("/proc/x"), ""):
        with pitstop.attach(place) as attached, pitstop.span("part"):
            assert current() is None
            train(3)
        attached.close()
        said = capsys.readouterr().err
        assert said.startswith("pitstop: this training is not measured: cannot write a record to")
        assert said.count("\n") == 1


def test_a_process_without_torch_goes_on_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with pitstop.attach(tmp_path / "run"):
        assert current() is None
    assert "not measured: import torch before attaching" in capsys.readouterr().err


def test_a_folder_that_goes_away_ends_the_measuring_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pitstop.attach(tmp_path / "run"):
        (tmp_path / "run").rmdir()
        (tmp_path / "run").touch()  # a record cannot lie in a file
        train(60)
        assert current() is None
        train(60)
    said = capsys.readouterr().err
    assert said.startswith("pitstop: measuring stopped: ")
    assert said.count("\n") == 1


FULL = """
import resource, sys
import torch
import pitstop

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

if sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    attached = pitstop.attach(sys.argv[1])
for _ in range(600):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
if sys.argv[1:]:
    attached.close()
print(loss.item())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of a process")
def test_a_full_disk_ends_the_record_and_not_the_training(tmp_path: Path) -> None:
    bare, full = (run_python("-c", FULL, *place) for place in ([], [str(tmp_path / "run")]))
    assert (full.returncode, full.stdout) == (bare.returncode, bare.stdout)
    assert (
        full.stderr
        == f"pitstop: the record {tmp_path}/run/rank-0.jsonl ends here: File too large\n"
    )
    # What came before the end still reads.
    assert read_run(tmp_path / "run").first.steps


def test_the_record_is_where_it_was_asked_for_whatever_the_training_changes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with pitstop.attach("run") as attached:
        monkeypatch.chdir(tmp_path / "elsewhere")
        train()
    assert attached.folder == tmp_path / "run"
    assert read_run(tmp_path / "run").first.is_finished
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_failed_training_leaves_a_record_that_says_so(tmp_path: Path) -> None:
    def fail() -> None:
        with pitstop.attach(tmp_path / "run"):
            train()
            raise ZeroDivisionError("planted")

    with pytest.raises(ZeroDivisionError):
        fail()
    ending = read_run(tmp_path / "run").first.ending
    assert ending is not None
    assert (ending.status, ending.reason) == ("failed", "ZeroDivisionError: planted")


def test_a_span_where_nothing_measures_does_nothing() -> None:
    with pitstop.span("alone"):
        pass
