"""The clock on a real CUDA device: it never waits, it adds up, and it changes nothing.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_clock_gpu.py``.
"""

import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from pitstop_probe import Clock, CudaTimer, RecordWriter, Span, Step, cuda_timer

try:
    import pytest
except ModuleNotFoundError:  # a machine with a GPU and little else
    pytest = None
else:
    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ]

WARM_UP = 5
STEPS = 40


class Kept:
    """Keeps what a clock hands over."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        del name, step, start_us, wall_us


class Work:
    """A known sequence of kernels: a chain of matrix products, each some hundred microseconds."""

    def __init__(self, side: int = 4096) -> None:
        torch.manual_seed(0)
        self.matrix = torch.randn(side, side, device="cuda", dtype=torch.bfloat16) / side**0.5

    def __call__(self, products: int) -> None:
        result = self.matrix
        for _ in range(products):
            result = result @ self.matrix


def every_step_timer() -> CudaTimer:
    """A timer that marks the spans of every step, so that every step can be looked at."""
    timer = cuda_timer()
    assert timer is not None
    timer.span_marks_every = 1
    return timer


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make every call that waits for the device an error."""
    wait_for_device()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype whenever it is set
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def wait_for_device() -> None:
    torch.cuda.current_stream().synchronize()


def measured_steps(step: Callable[[Clock], None]) -> list[Step]:
    """Run steps under the clock, forbidding it to wait, and give those after warm-up."""
    kept = Kept()
    clock = Clock(kept, every_step_timer())
    with no_waiting():
        for _ in range(WARM_UP + STEPS):
            clock.begin_step()
            step(clock)
        clock.end_step()
    wait_for_device()
    clock.close()
    assert len(kept.steps) == WARM_UP + STEPS
    return kept.steps[WARM_UP:]


def by_path(step: Step) -> dict[tuple[str, ...], int]:
    return {span.path: us for span, us in step.device_us.items()}


def test_a_measured_loop_never_waits_and_its_device_tree_is_consistent() -> None:
    work = Work()

    def step(clock: Clock) -> None:
        with clock.span("forward"):
            with clock.span("stage1"):
                work(2)
            with clock.span("stage2"):
                work(4)
            work(1)
        with clock.span("backward"):
            work(3)

    for timed in measured_steps(step):
        assert timed.device_wall_us is not None
        assert set(by_path(timed)) == {
            ("forward",),
            ("forward", "stage1"),
            ("forward", "stage2"),
            ("backward",),
        }
        assert all(us > 0 for us in timed.device_us.values())
        top = sum(us for span, us in timed.device_us.items() if span.depth == 1)
        assert top <= timed.device_wall_us
        for span in timed.device_us:
            assert children_us(timed, span) <= timed.device_us[span]


def children_us(step: Step, span: Span) -> int:
    return sum(us for child, us in step.device_us.items() if child.parent is span)


def test_device_times_agree_with_plain_events() -> None:
    """Pairs of steps, timed by the clock and by two bare events, interleaved."""
    work = Work()
    kept = Kept()
    clock = Clock(kept, every_step_timer())
    events = []
    for _ in range(WARM_UP + STEPS):
        clock.begin_step()
        with clock.span("products"):
            work(8)
        with clock.outside_step("the same, timed by hand"):
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            work(8)
            pair[1].record()
            events.append(pair)
    clock.end_step()
    wait_for_device()
    clock.close()
    ours_us = [sum(step.device_us.values()) for step in kept.steps[WARM_UP:]]
    plain_us = [start.elapsed_time(end) * 1e3 for start, end in events[WARM_UP:]]
    ratio = statistics.median(ours_us) / statistics.median(plain_us)
    sys.stdout.write(
        f"clock {statistics.median(ours_us):.0f} us, plain events "
        f"{statistics.median(plain_us):.0f} us, ratio {ratio:.3f}\n"
    )
    assert 0.8 < ratio < 1.2
    # The apart half is not in the step: its wall is that of the products alone.
    walls_us = [step.device_wall_us for step in kept.steps[WARM_UP:]]
    assert statistics.median(us or 0 for us in walls_us) < 1.5 * statistics.median(ours_us)


def test_twice_the_work_takes_twice_the_time_and_is_told_apart() -> None:
    work = Work()

    def step(clock: Clock) -> None:
        with clock.span("one"):
            work(4)
        with clock.span("two"):
            work(8)

    steps = measured_steps(step)
    ratio = statistics.median(by_path(s)[("two",)] / by_path(s)[("one",)] for s in steps)
    assert 1.6 < ratio < 2.4


def test_work_on_a_side_stream_neither_breaks_the_loop_nor_gives_times_below_zero() -> None:
    work = Work()
    side = torch.cuda.Stream()

    def step(clock: Clock) -> None:
        with clock.span("main"):
            work(8)
        with torch.cuda.stream(side), clock.span("aside"):
            work(1)
        with clock.span("both"):
            torch.cuda.set_stream(side)
            work(1)
        torch.cuda.set_stream(torch.cuda.default_stream())

    steps = measured_steps(step)
    for timed in steps:
        # A border may share its mark with the end of "both", on the other stream: not known then.
        assert timed.device_wall_us is None or timed.device_wall_us >= 0
        assert all(us >= 0 for us in timed.device_us.values())
        assert len(timed.host_us) == 3
    assert any(by_path(timed).get(("main",), 0) > 0 for timed in steps)


def losses(folder: Path | None) -> torch.Tensor:
    """Train a small network, measured where a folder is given; every loss, exactly."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = torch.randn(256, 512, device="cuda")
    seen = []
    writer = None if folder is None else RecordWriter(str(folder / "rank-0.jsonl"))
    clock = Clock(
        Kept() if writer is None else writer, None if writer is None else every_step_timer()
    )
    with no_waiting():
        for _ in range(STEPS):
            if writer is not None:
                clock.begin_step()
            with clock.span("forward"):
                loss = (model(batch) - batch).square().mean()
            with clock.span("backward"):
                loss.backward()
            with clock.span("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            seen.append(loss.detach())
    wait_for_device()
    clock.close()
    if writer is not None:
        writer.close()
    return torch.stack(seen).cpu()


def test_results_are_equal_to_the_bit_with_and_without_the_clock() -> None:
    bare = losses(None)
    with tempfile.TemporaryDirectory() as folder:
        measured = losses(Path(folder))
        rows = (Path(folder) / "rank-0.jsonl").read_bytes().count(b"\n[")
    assert rows == STEPS
    assert torch.equal(bare, measured)
    assert bare[-1] < bare[0]


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            sys.stdout.write(f"ok {name}\n")
