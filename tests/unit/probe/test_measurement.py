"""A measurement: what fails in it costs a reading, not the record or the script."""

# pyright: reportPrivateUsage=false

import atexit
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode as current_mode

import pitstop_probe
from pitstop_probe import measurement as measurement_module
from pitstop_probe.attach import current, start
from pitstop_probe.deep import deep_profile
from pitstop_probe.deep.kernel_profile import KernelProfile
from pitstop_probe.deep.module_profile import ModuleProfile
from pitstop_probe.deep.work_profile import WorkProfile
from pitstop_probe.measurement import Measurement, Settings

STEPS = 12
"""Measured ones, after warm-up."""


def fail(*_: Any) -> Any:
    raise AttributeError("planted")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.set_num_threads(1)
    # Nothing is profiled where something was compiled, and other tests compile.
    monkeypatch.setattr(measurement_module, "compile_counts", lambda: None)
    monkeypatch.setattr(deep_profile, "compile_counts", lambda: None)
    yield
    measurement = current()
    if measurement is not None:
        measurement.close()


@pytest.fixture
def measurement(tmp_path: Path) -> Measurement:
    return start(torch, Settings(str(tmp_path), STEPS, detach=True))


def train(steps: int, after: Callable[[int], object] = lambda _: None) -> None:
    """Train as a function does: all of it is gone when it returns."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
        after(step)


def readings(folder: Path) -> dict[str, dict[str, Any]]:
    lines = (folder / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["kind"]: row for row in rows if isinstance(row, dict)}


@pytest.mark.parametrize("profile", [ModuleProfile, WorkProfile])
@pytest.mark.parametrize("stage", ["__init__", "on", "off", "values"])
def test_a_deep_profile_that_fails_costs_its_own_reading_alone(
    measurement: Measurement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: Any,
    stage: str,
) -> None:
    whole = getattr(profile, stage)

    def fails(*args: Any) -> None:
        if stage == "off":
            whole(*args)
        raise AttributeError("planted")

    monkeypatch.setattr(profile, stage, fails)
    train(60)
    assert measurement.is_closed
    assert measurement.tracker.steps == measurement_module.WARM_UP + STEPS
    found = readings(tmp_path)
    assert profile.kind not in found
    assert {"setup", "owners", "end"} < set(found)
    assert found["end"]["status"] == "finished"
    assert current_mode() is None
    assert "__call__" not in vars(nn.Linear)


@pytest.mark.parametrize("stage", ["_write_summary", "_patches_off"])
def test_a_stage_of_the_end_that_fails_keeps_no_other_from_coming(
    measurement: Measurement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stage: str,
) -> None:
    measurement._settings.detach = False
    ended: list[bool] = []
    whole = getattr(measurement, stage)
    monkeypatch.setattr(
        "pitstop_probe.measurement.end_script", lambda _: ended.append(measurement.is_closed)
    )
    monkeypatch.setattr(measurement, stage, fail)
    train(60)
    assert ended == [True]
    assert "end" in readings(tmp_path)
    assert "the record is incomplete: AttributeError('planted')" in capsys.readouterr().err
    if stage == "_patches_off":
        whole()


def test_a_search_that_fails_reaches_neither_the_script_nor_the_step(
    measurement: Measurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement.models, "search", fail)
    train(5)
    measurement._search()  # as a loader's start does
    assert measurement.tracker.open == []
    train(60)
    assert readings(tmp_path)["end"]["status"] == "finished"


class Quiet(TorchDispatchMode):
    """A mode of the script's own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_of_the_scripts_is_left_alone(
    measurement: Measurement, tmp_path: Path
) -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(60):
        with Quiet() as mode:
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            assert current_mode() is mode
        assert current_mode() is None
    found = readings(tmp_path)
    assert measurement.is_closed
    assert "work" not in found
    assert "modules" in found


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.parametrize("kind", ["modules", "work"])
def test_a_process_forked_in_a_step_that_is_profiled_keeps_nothing_of_it(
    measurement: Measurement, kind: str
) -> None:
    said: list[bytes] = []

    def fork(_: int) -> None:
        if getattr(measurement.deep.running, "kind", None) != kind:
            return
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            left = current_mode() is not None or "replace_call" in nn.Linear.__call__.__qualname__
            os.write(write, b"left" if left else b"clean")
            os._exit(0)
        os.waitpid(child, 0)
        said.append(os.read(read, 10))
        os.close(read)
        os.close(write)

    train(10, fork)
    assert set(said) == {b"clean"}


@pytest.mark.parametrize("is_gone", [True, False])
def test_who_holds_memory_is_seen_while_it_is_held(
    measurement: Measurement, tmp_path: Path, is_gone: bool
) -> None:
    held = []
    model = nn.Linear(8, 4)
    if not is_gone:
        held.append(model)

    def main(model: nn.Module) -> None:
        optimizer = torch.optim.AdamW(model.parameters())
        if not is_gone:
            held.append(optimizer)
        for _ in range(30):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    main(model)
    del model
    measurement.close()
    owners = readings(tmp_path)["owners"]
    numbers = 8 * 4 + 4
    assert owners["device"] == "cpu"
    assert owners["parameters_bytes"] == owners["gradients_bytes"] == 4 * numbers
    assert owners["optimizer_bytes"] == 2 * 4 * numbers + 2 * 4  # and two counts of steps
    assert owners["peak_bytes"] is None


def test_what_holds_memory_is_not_told_where_nobody_saw_it(
    measurement: Measurement, tmp_path: Path
) -> None:
    train(10)
    measurement.close()
    assert "owners" not in readings(tmp_path)


def test_start_up_is_told_only_where_it_was_seen(tmp_path: Path) -> None:
    def events(folder: Path, started_us: int | None) -> list[dict[str, Any]]:
        measurement = start(torch, Settings(str(folder), started_us=started_us))
        train(10)
        measurement.close()
        lines = (folder / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        return [row for row in rows if row.get("name") == "start-up"]

    assert events(tmp_path / "called", None) == []
    long_ago = measurement_module.monotonic_us() - 5_000_000
    (seen,) = events(tmp_path / "from the start", long_ago)
    assert seen["start_us"] == 0
    assert seen["wall_us"] > 5_000_000


def test_nothing_is_done_at_a_border_inside_a_captured_graph(
    measurement: Measurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = [6, 20, 25]

    def is_capturing() -> bool:
        return measurement.tracker.steps in captured

    monkeypatch.setattr(measurement, "_is_capturing", is_capturing)
    train(60)
    found = readings(tmp_path)
    assert measurement.is_closed
    assert found["modules"]["step"] == 6, "it is ended at the next border outside"
    assert found["end"]["status"] == "finished"
    assert "owners" in found


def test_nothing_is_marked_on_a_device_that_captures_a_graph(measurement: Measurement) -> None:
    marks: list[int] = []
    measurement.tracker.device = SimpleNamespace(mark=lambda: marks.append(1))  # type: ignore[assignment]
    profile = ModuleProfile(measurement.tracker, torch, [nn.Linear(2, 2)])
    measurement.tracker.device = None
    profile._is_on, profile._is_capturing = True, lambda: True
    profile._mark(0, None)
    assert marks == []
    profile._is_capturing = lambda: False
    profile._mark(0, None)
    assert marks == [1]


def test_a_profiler_of_the_scripts_is_left_alone(measurement: Measurement) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(2).sum()
        measurement.deep.start(KernelProfile, measurement.tracker, torch, 3)
        assert measurement.deep.running is None
        torch.ones(2).prod()
    names = {event.name for event in profile.events() or ()}
    assert {"aten::sum", "aten::prod"} <= names


def test_nothing_outside_of_torch_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Any] = []
    watched = (sys, "excepthook"), (os, "execv"), (os, "execve")
    before = [getattr(owner, name) for owner, name in watched]
    start(torch, Settings(str(tmp_path / "first"))).close()
    monkeypatch.setattr(os, "register_at_fork", lambda **_: registered.append(1))
    monkeypatch.setattr(atexit, "register", lambda *_: registered.append(1))
    for number in range(3):
        measurement = start(torch, Settings(str(tmp_path / str(number))))
        assert [getattr(owner, name) for owner, name in watched] != before
        measurement.close()
        assert [getattr(owner, name) for owner, name in watched] == before
    assert registered == []


_BECOMES_ANOTHER = """
import os, sys, torch
torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(30):
    weight.sum().backward()
    optimizer.step()
os.execlp(sys.executable, sys.executable, "-c", "print('the second program')")
"""


def test_a_script_that_becomes_another_program_leaves_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Path(pitstop_probe.__file__).parent
    monkeypatch.setenv("PYTHONPATH", str(probe / "inject"))
    monkeypatch.setenv("PITSTOP_PROBE_PATH", str(probe))
    monkeypatch.setenv("PITSTOP_PROBE", json.dumps({"folder": str(tmp_path)}))
    script = [sys.executable, "-c", _BECOMES_ANOTHER]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout == "the second program\n"
    assert readings(tmp_path)["end"]["status"] == "finished"
