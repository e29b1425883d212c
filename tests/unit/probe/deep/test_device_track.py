"""Host and device of a profiled step on one clock."""

import random
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pitstop.records.run import Reading
from pitstop.records.script import Kernels
from pitstop.records.store import decode
from pitstop_probe.deep.device_track import EndedStep, Ran, device_track, epoch_offset_ns
from pitstop_probe.deep.kernel_classes import class_of
from pitstop_probe.deep.kernel_profile import KernelProfile, profiled
from pitstop_probe.steps.parts import TRAIN
from pitstop_probe.steps.step_tracker import StepTracker

AHEAD = 10**18  # the epoch's time, less the tracker's
STEP = EndedStep(11, 5_000_000, 9_000_000, [("forward", 5_100_000, 6_000_000)])
PROFILED = (4_000_000, 10_000_000)


def ran(name: str, start_us: float, took_us: float) -> Ran:
    """Something that ran so long after the step began."""
    return Ran(name, AHEAD + STEP.start + int(start_us * 1000), int(took_us * 1000))


def track(*events: Ran) -> dict[str, Any]:
    found = device_track(STEP, events, AHEAD, PROFILED)
    assert found is not None
    return found


def test_a_track_is_cut_at_the_borders_of_its_step() -> None:
    found = track(
        ran("gemm", -300, 400),
        ran("vectorized_elementwise", 200, 100),
        ran("gemm", 3_900, 300),
        ran("gemm", -900, 100),
        ran("gemm", 4_500, 100),
    )
    products, pointwise = (found["classes"].index(class_of(n)) for n in ("gemm", "vectorized"))
    assert found["pieces"] == [
        [0.0, 100.0, products, 1],
        [200.0, 300.0, pointwise, 1],
        [3_900.0, 4_000.0, products, 1],
    ]
    assert (found["step"], found["wall_us"], found["left_out"]) == (11, 4_000, 0)
    assert found["host"] == [["forward", 100.0, 1_000.0]]


def test_neighbours_of_one_class_are_one_piece_and_others_are_not() -> None:
    # A pixel of a step of 4 ms is a microsecond.
    found = track(
        ran("gemm", 10, 5),
        ran("gemm", 15.5, 5),
        ran("softmax", 21, 1),
        ran("gemm", 22, 5),
        ran("gemm", 40, 5),
    )
    spans = [(start, end, count) for start, end, _, count in found["pieces"]]
    assert spans == [(10, 20.5, 2), (21, 22, 1), (22, 27, 1), (40, 45, 1)]


def test_transfers_and_communication_run_beside_the_rest() -> None:
    found = track(
        ran("gemm", 10, 5),
        ran("ncclDevKernel_AllReduce", 12, 30),
        ran("Memcpy HtoD (Pinned -> Device)", 13, 2),
        ran("gemm", 15.2, 5),
    )
    named = {found["classes"][piece[2]]: tuple(piece[:2]) for piece in found["pieces"]}
    assert named["matrix products"] == (10, 20.2)
    assert named["communication"] == (12, 42)
    assert named["transfers"] == (13, 15)


def test_of_very_many_the_longest_are_kept() -> None:
    names = ("gemm", "softmax")
    events = [ran(names[place % 2], place, 0.3 + 0.0001 * place) for place in range(3_000)]
    found = track(*events)
    assert len(found["pieces"]) == 2_000
    assert found["left_out"] == 1_000
    assert min(piece[0] for piece in found["pieces"]) == 1_000


def test_busy_time_is_that_of_the_events_but_for_joined_gaps() -> None:
    draw = random.Random(3)
    for _ in range(20):
        starts = sorted(draw.uniform(0, 3_900) for _ in range(200))
        events = [
            ran(draw.choice(("gemm", "softmax")), start, draw.uniform(1, 40)) for start in starts
        ]
        covered = _covered_ns([(e.start, min(e.start + e.took, AHEAD + STEP.end)) for e in events])
        found = track(*events)
        drawn = _covered_ns([(round(s * 1000), round(e * 1000)) for s, e, *_ in found["pieces"]])
        joined = len(events) - len(found["pieces"])
        rounded = 100 * len(found["pieces"])
        assert covered - rounded <= drawn <= covered + joined * 1_000 + rounded
        assert sum(piece[3] for piece in found["pieces"]) == len(events)


def _covered_ns(intervals: list[tuple[int, int]]) -> int:
    """Count by laying the intervals' ends in order: how many are open between two of them."""
    ends = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    total = open_now = 0
    for (at, change), (following, _) in pairwise(ends):
        open_now += change
        total += (following - at) * (open_now > 0)
    return total


def test_clocks_that_do_not_agree_give_no_track() -> None:
    events = [ran("gemm", place, 1) for place in range(100)]
    assert device_track(STEP, events, AHEAD - 10**9, PROFILED) is None
    assert device_track(STEP, [], AHEAD, PROFILED) is None


def test_a_profiler_of_torch_counts_from_the_epoch() -> None:
    """Lay a real profile on the host's clock: its events lie where they were made."""
    offset = epoch_offset_ns(time.perf_counter_ns)
    values = torch.randn(256, 256)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        before = time.perf_counter_ns()
        torch.mm(values, values)
        after = time.perf_counter_ns()
    events = profiled(profile.profiler.kineto_results.events())  # type: ignore[union-attr]
    product = next(event for event in events if event.name == "aten::mm")
    slack = 50_000_000  # another clock is not off by so little: they begin years apart
    assert before - slack <= product.start - offset
    assert product.start + product.took - offset <= after + slack


class _Sink:
    def step(self, step: Any) -> None:
        pass

    def unsampled_steps(self, steps: Any) -> None:
        pass

    def event(self, name: str, **_: Any) -> None:
        pass


@pytest.mark.parametrize("ahead", [10**18, 0])
def test_the_step_in_the_middle_is_drawn_with_its_parts(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    now = [1_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: ahead + now[0])
    tracker = StepTracker(_Sink(), now_ns=lambda: now[0])
    events: list[Any] = []
    torch_ = _fake_torch(events)
    profile = KernelProfile(tracker, torch_, 3)
    tracker.stepped(1)
    profile.on()
    for step in range(3):
        now[0] += 1_000_000
        tracker.enter("forward", TRAIN)
        events.append(_event("gemm", ahead + now[0] + 500_000, 250_000))
        now[0] += 2_000_000
        tracker.leave("forward")
        tracker.stepped(1)
        (profile.border if step < 2 else profile.off)()
    found = decode(Reading(kind="kernels", attempt=0, at_us=0, values=profile.values(2)), Kernels)
    assert found.track is not None
    assert (found.track.step, found.track.wall_us) == (1, 3_000)
    assert found.track.host == (("forward", 1_000.0, 3_000.0),)
    assert found.track.pieces == ((1_500.0, 1_750.0, 0, 1),)
    assert found.track.classes == ("matrix products",)


def _event(name: str, start: int, took: int) -> Any:
    return SimpleNamespace(
        name=lambda: name,
        device_type=lambda: "DeviceType.CUDA",
        start_ns=lambda: start,
        duration_ns=lambda: took,
    )


def _fake_torch(events: list[Any]) -> Any:
    class Profile:
        def __init__(self, activities: Any) -> None:
            results = SimpleNamespace(events=lambda: events)
            self.profiler = SimpleNamespace(kineto_results=results)
            del activities

        def start(self) -> None:
            pass

        def stop(self) -> None:
            pass

    return SimpleNamespace(
        cuda=SimpleNamespace(synchronize=lambda: None),
        autograd=SimpleNamespace(_profiler_enabled=lambda: False),
        profiler=SimpleNamespace(
            profile=Profile, ProfilerActivity=SimpleNamespace(CPU="cpu", CUDA="cuda")
        ),
    )
