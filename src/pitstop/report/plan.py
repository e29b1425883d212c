"""A plan as text for a terminal: the verdict, who holds the memory, what other choices cost."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pitstop.records.plans.evaluation import EvaluationPlan
from pitstop.records.plans.host import HostPlan, HostRow
from pitstop.records.plans.plan import LedgerRow, MemoryPlan, PlanRow, SpeedPlan, WhatIf
from pitstop.records.units import bytes_text, seconds_text, share_text
from pitstop.report.terminal_tables import titled_lines


def plan_report(plan: MemoryPlan) -> RenderableType:
    """Lay out a plan: result first, evidence second, next command last."""
    parts: list[RenderableType] = [Text(line) for line in verdict_lines(plan)]
    parts[0] = Text(verdict_lines(plan)[0], style="bold")
    parts += [
        Text(),
        Text("memory at the peak", style="bold"),
        _holders(plan.ledger, plan.peak_bytes),
    ]
    if plan.evaluation is not None:
        parts += titled_lines("evaluation", evaluation_lines(plan, plan.evaluation))
    if plan.host is not None:
        parts += titled_lines("host memory", host_lines(plan.host))
        parts.append(_holders(plan.host.rows, plan.host.total_bytes))
    if plan.speed is not None:
        parts += titled_lines("time (estimated)", speed_lines(plan.speed))
    parts += titled_lines("what if", map(what_if_line, plan.what_if))
    if plan.table:
        parts += [Text(), Text("other choices", style="bold"), _table(plan)]
    parts += titled_lines("change first", plan.advice)
    parts += titled_lines("notes", plan.notes)
    return Group(*parts)


def verdict_lines(plan: MemoryPlan) -> list[str]:
    """Say whether it fits, how close that is, and where the peak lies."""
    share = plan.peak_bytes / plan.usable_bytes
    trace = plan.trace
    place = ", ".join(trace.peak_place) or "outside the step"
    largest = max(plan.ledger, key=lambda row: row.num_bytes)
    basis = plan.interval_basis
    if plan.calibration is not None:
        basis = f"calibrated by {plan.calibration.run} (x {plan.calibration.factor:.3f})"
    return [
        *_worse_than_the_step(plan),
        f"{plan.fit}: {bytes_text(plan.peak_bytes)} of {bytes_text(plan.usable_bytes)} that "
        f"{plan.gpu} has for tensors ({share:.0%})",
        f"between {bytes_text(plan.low_bytes)} and {bytes_text(plan.high_bytes)}, {basis}; "
        f"batch {_batch_text(trace.batch_size)}, {trace.precision}, recompute {trace.recompute}, "
        f"{trace.optimizer}",
        f"the peak is in {place} ({trace.peak_operation}); most of it: {largest.owner}",
    ]


def _worse_than_the_step(plan: MemoryPlan) -> list[str]:
    """Say first what does not fit, where training steps by themselves would."""
    others = {"evaluation": plan.evaluation, "the host": plan.host}
    return [
        f"{one.fit}: {name}, see below"
        for name, one in others.items()
        if one is not None and one.fit != "fits" and plan.fit == "fits"
    ]


def evaluation_lines(plan: MemoryPlan, evaluation: EvaluationPlan) -> Iterator[str]:
    """Say whether an evaluation fits, and whether it or a step has the run's peak."""
    trace = evaluation.trace
    how = "whole images" if trace.tile is None else f"tiles of {trace.tile}"
    yield (
        f"{evaluation.fit}: {bytes_text(evaluation.peak_bytes)} between training steps, "
        f"{bytes_text(evaluation.alone_bytes)} as a command of its own; batch "
        f"{trace.batch_size}, {how}{'' if trace.metrics else ' (metrics not included)'}"
    )
    above = evaluation.peak_bytes > plan.peak_bytes
    yield f"the peak of the run is in {'evaluation' if above else 'training'}"


def host_lines(host: HostPlan) -> Iterator[str]:
    """Say whether the host has enough memory for the job."""
    yield (
        f"{host.fit}: {bytes_text(host.total_bytes)} of {bytes_text(host.limit_bytes)} that "
        f"{host.limit_of} has (estimated, {bytes_text(host.low_bytes)} to "
        f"{bytes_text(host.high_bytes)})"
    )
    ahead = "" if host.prefetch is None else f", each {host.prefetch} batches ahead"
    ranks = f"{host.ranks} {'process' if host.ranks == 1 else 'processes'}"
    yield (f"{ranks} with {host.workers} workers{ahead}; a batch is {bytes_text(host.batch_bytes)}")
    yield from host.notes


def speed_lines(speed: SpeedPlan) -> Iterator[str]:
    """Say how long steps, epochs and the whole take."""
    low, high = seconds_text(speed.low_s), seconds_text(speed.high_s)
    yield (
        f"a step {seconds_text(speed.step_s)} ({low} to {high}), "
        f"{speed.samples_per_s:.3g} samples/s on {speed.gpu} ({speed.basis})"
    )
    yield (
        f"{speed.kernels} operations: {seconds_text(speed.device_s)} on the device, "
        f"{seconds_text(speed.launch_s)} to start them"
    )
    if speed.epoch_s is not None:
        yield f"an epoch {seconds_text(speed.epoch_s)}"
    if speed.total_s is not None:
        yield f"the whole training {seconds_text(speed.total_s)}"


def what_if_line(one: WhatIf) -> str:
    """Say what a change would do."""
    if one.peak_bytes is None or one.more_bytes is None:
        return f"{one.change}: {one.problem}"
    sign = "+" if one.more_bytes >= 0 else "-"
    step = "" if one.step_s is None else f", a step {seconds_text(one.step_s)} (estimated)"
    return (
        f"{one.change}: {one.fit}, {bytes_text(one.peak_bytes)} "
        f"({sign}{bytes_text(abs(one.more_bytes))}){step}"
    )


def _holders(rows: Iterable[LedgerRow | HostRow], whole_bytes: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        share = share_text(row.num_bytes / whole_bytes)
        table.add_row(f"  {row.owner}", bytes_text(row.num_bytes), share, row.basis)
    return table


def _table(plan: MemoryPlan) -> Table:
    table = Table.grid(padding=(0, 2))
    timed = "step" if any(row.step_s is not None for row in plan.table) else ""
    table.add_row("  batch", "recompute", "precision", "optimizer", "peak", "", timed, "", "")
    for row in plan.table:
        table.add_row(*_cells(row))
    return table


def _batch_text(batch_size: int) -> str:
    """Give a batch size; that of a script may not be known."""
    return str(batch_size or "not known")


def _cells(row: PlanRow) -> tuple[str, ...]:
    marks = [word for word, is_so in (("configured", row.configured), ("best", row.best)) if is_so]
    rate = "" if row.samples_per_s is None else f"{row.samples_per_s:.3g}/s"
    return (
        f"  {_batch_text(row.batch_size)}",
        row.recompute,
        row.precision,
        row.optimizer,
        bytes_text(row.peak_bytes),
        row.fit,
        "" if row.step_s is None else seconds_text(row.step_s),
        rate,
        ", ".join(marks),
    )
