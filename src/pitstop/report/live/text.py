"""A live view as text: the same ones on a terminal, in a pipe and on a page."""

from pitstop.records.units import (
    NOT_MEASURED,
    bytes_text,
    count_text,
    digits,
    quality_text,
    rate_text,
    seconds_text,
    share_text,
)
from pitstop.report.live.throughput import TimeLeft
from pitstop.report.live.view import Happened, LiveView, LossView, MemoryView, RankView
from pitstop.report.terminal import literal

_MOST_METRICS = 6


def state_text(view: LiveView) -> str:
    """What the run is doing, and since when nothing was heard."""
    text = view.state
    if view.age_s is not None and not view.is_over:
        text += f", last write {age_text(view.age_s)}"
    return f"{text}: {literal(view.reason)}" if view.reason else text


def age_text(age_s: float) -> str:
    """How long ago something was; below a second that says more of the looking than of the run."""
    return "just now" if age_s < 1.0 else f"{seconds_text(age_s)} ago"


def step_text(view: LiveView) -> str:
    """Where the run is."""
    if view.step is None:
        return "no step yet"
    if view.total_steps is None:
        return f"{view.step:,} (total not in the record)"
    return f"{view.step:,} of {view.total_steps:,}, {share_text(view.step / view.total_steps)}"


def left_text(view: LiveView) -> str:
    """How long it will take, how sure that is, and from what it was taken."""
    if view.is_over:
        return f"ran {seconds_text(view.ran_s)}"
    if view.left is None:
        return "" if view.total_steps is None or view.step is None else "time left: too few steps"
    return f"estimated {seconds_text(view.left.seconds)} left ({range_text(view.left)})"


def range_text(left: TimeLeft) -> str:
    """Where an estimate lies, and what it was taken from."""
    low, high = seconds_text(left.low_s), seconds_text(left.high_s)
    return f"{low} to {high} by windows of the last {count_text(left.steps, 'step')}"


def speed_text(view: LiveView) -> str:
    """Throughput of all ranks now and by the median step, and the step itself."""
    first = view.first
    if first is None or not first.now_steps:
        return NOT_MEASURED
    here = len(view.ranks)
    whose = "" if view.world_size == 1 else f" over {here} of {view.world_size} ranks"
    now = f"{rate_text(view.samples_per_s, 'samples/s')} now{whose}"
    steady = f"{rate_text(view.steady_samples_per_s, 'samples/s')} by the median step"
    basis = f"last {count_text(first.now_steps, 'step')}, pauses included"
    steps = count_text(first.steady_steps, "step")
    return f"{now} ({basis}); {steady} ({steps}, within 2%)"


def wait_text(view: LiveView) -> str:
    """How much of the step is waiting for data, and how long a step is."""
    first = view.first
    if first is None or not first.now_steps:
        return NOT_MEASURED
    share = "not measured" if first.data_share is None else f"{share_text(first.data_share)}"
    whose = f" of rank {first.rank}" if len(view.ranks) > 1 else ""
    return f"{share} of the step{whose}; a step takes {seconds_text(first.step_s)} (median)"


def part_text(name: str, share: float) -> str:
    """A part and its share."""
    return f"{literal(name)} {share_text(share)}"


def memory_text(memory: MemoryView | None) -> str:
    """Device peak and host tree."""
    if memory is None:
        return NOT_MEASURED
    if memory.device_peak_bytes is None:
        device = f"device peak {NOT_MEASURED}"
    else:
        total = _of_total(memory.device_total_bytes)
        peak = bytes_text(memory.device_peak_bytes)
        device = f"device peak {peak}{total} ({literal(memory.device or '')})"
    tree = bytes_text(memory.tree_bytes)
    host = "" if memory.tree_bytes is None else _of_total(memory.host_total_bytes)
    return f"{device}; host processes {tree}{host}"


def _of_total(total_bytes: int | None) -> str:
    return "" if total_bytes is None else f" of {bytes_text(total_bytes)}"


def loss_text(loss: LossView | None) -> str:
    """The latest loss, and whether it was ever not finite."""
    if loss is None:
        return NOT_MEASURED
    value = "not a finite number" if loss.value is None else digits(loss.value)
    text = f"{value} at step {loss.step:,}"
    if not loss.not_finite:
        return text
    times = count_text(loss.not_finite, "time")
    return f"{text}; not finite {times}, first at step {loss.first_not_finite:,}"


def evaluation_text(happened: Happened | None) -> str:
    """The latest evaluation."""
    if happened is None:
        return "none yet"
    shown = list(happened.metrics.items())[:_MOST_METRICS]
    more = ", ..." if len(happened.metrics) > len(shown) else ""
    metrics = ", ".join(f"{literal(name)} {quality_text(value)}" for name, value in shown)
    return f"step {happened.step:,}: {metrics or 'no metrics in the record'}{more}{_took(happened)}"


def checkpoint_text(happened: Happened | None) -> str:
    """The latest checkpoint."""
    if happened is None:
        return "none yet"
    place = "" if happened.path is None else f" in {literal(happened.path)}"
    return f"step {happened.step:,}{place}{_took(happened)}"


def _took(happened: Happened) -> str:
    return "" if happened.took_s is None else f" (took {seconds_text(happened.took_s)})"


def verdict_text(view: LiveView) -> str:
    """What the doctor says of the last steps."""
    if view.verdict is None:
        return "not examined yet"
    text = f"{view.verdict.outcome}: {literal(view.verdict.message)}"
    steps = f"{view.verdict.steps} steps"
    return text if steps in text else f"{text} (last {steps})"


def rank_cells(rank: RankView) -> tuple[str, ...]:
    """One rank as a row: number, state, step, rate, step time, waiting."""
    return (
        f"rank {rank.rank}",
        rank.state,
        "no step" if rank.step is None else f"step {rank.step:,}",
        rate_text(rank.samples_per_s, "samples/s"),
        f"{seconds_text(rank.step_s)} a step",
        f"waiting {share_text(rank.data_share)}",
    )


def plain_line(view: LiveView) -> str:
    """The view in one line, for a pipe."""
    if view.state == "waiting":
        return f"{literal(view.name)}: waiting, {view.reason}"
    first = view.first
    total = "" if view.total_steps is None else f"/{view.total_steps}"
    loss = view.loss
    pieces = [
        f"{view.state}",
        f"step {view.step or 0}{total}",
        f"{rate_text(view.samples_per_s, 'samples/s')}",
        f"waiting for data {share_text(first.data_share if first else None)}",
        f"loss {NOT_MEASURED if loss is None or loss.value is None else digits(loss.value)}",
    ]
    if view.left is not None:
        pieces.append(f"estimated {seconds_text(view.left.seconds)} left")
    if view.verdict is not None:
        pieces.append(view.verdict.verdict)
    return f"{literal(view.name)}: " + "  ".join(pieces)
