"""``pitstop plan -- CMD``: the script's first steps are run and recorded, the rest is predicted."""

import math
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from pitstop.errors import PitstopError, RecordError
from pitstop.measure.script.launch import first_failure, record_memory
from pitstop.plan.advice import advise
from pitstop.plan.memory import CONTEXT_BYTES, WORKSPACE_BYTES, Gpu, fit_of
from pitstop.plan.script.batch import BatchShape, certain_share, find_batch
from pitstop.plan.script.choices import ScriptChoices
from pitstop.plan.script.replay import Peak, trained_bytes, weights_bytes
from pitstop.records.plans.plan import Calibration, LedgerRow, MemoryPlan, StepTrace
from pitstop.records.plans.script import SampledStep, ScriptMemory
from pitstop.records.script import Ended
from pitstop.records.store import from_json

LOW, HIGH = 0.9, 1.1
"""What dry runs of the same models were of such plans, at the least and at the most, rounded
outwards (docs/accuracy.md)."""
BASIS: Final = "estimated from recorded steps; the interval is by comparison with dry runs"

_ASKS_FOR_GPU: Final = re.compile(r"cuda|nvidia|\bgpu|\bhip\b|nccl", re.IGNORECASE)
_FEWEST: Final = 4
_BUILD: Final = (
    "write a function build() -> (model, batch) and give it as pitstop plan MODULE:build"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedScript:
    """What to run, and for which GPU."""

    command: tuple[str, ...]
    gpu: Gpu
    batch_size: int | None = None
    """What the user says that the script's batch is."""
    what_if: tuple[str, ...] = ()
    with_table: bool = True
    stdout: int | None = None
    """Descriptor that takes the command's output; None lets it go where ours goes."""


def plan_script(wanted: WantedScript) -> MemoryPlan:
    """Run a script's first steps and plan from what they held.

    Raises:
        PitstopError: Where it takes no steps that can be recorded.
        KeyboardInterrupt: Where the user ended it.
    """
    with tempfile.TemporaryDirectory(prefix="pitstop-plan-") as name:
        folder = Path(name)
        ended = record_memory(wanted.command, folder, stdout=wanted.stdout)
        recorded = read_recorded(folder)
        if ended.interrupted:
            raise KeyboardInterrupt
        if recorded is None or not any(map(_saved_bytes, recorded.steps)):
            raise PitstopError(_why_nothing(wanted.command, ended, recorded, first_failure(folder)))
    return plan_recorded(wanted, recorded)


def read_recorded(folder: Path) -> ScriptMemory | None:
    """Read what the probe wrote: of the first rank, the process that was recorded longest."""
    found: list[ScriptMemory] = []
    for path in sorted(folder.glob("step-memory-*.json")):
        try:
            found.append(from_json(path.read_text(encoding="utf-8"), ScriptMemory))
        except (OSError, RecordError):
            continue
    return min(found, key=lambda one: (one.rank, -len(one.steps), -one.seen_steps), default=None)


def largest_step(memory: ScriptMemory) -> SampledStep:
    """Give the recorded step that saves most."""
    return max(memory.steps, key=_saved_bytes)


def plan_recorded(wanted: WantedScript, memory: ScriptMemory) -> MemoryPlan:
    """Plan from a recording."""
    step = largest_step(memory)
    batch = find_batch(memory, step, wanted.batch_size)
    choices = ScriptChoices(memory, step, batch)
    usable = wanted.gpu.num_bytes - CONTEXT_BYTES
    peak = choices.needed_bytes(choices.own)
    trace = _trace(memory, choices)
    plan = MemoryPlan(
        source=shlex.join(wanted.command),
        gpu=wanted.gpu.name,
        gpu_bytes=wanted.gpu.num_bytes,
        usable_bytes=usable,
        fit=fit_of(peak, usable),
        peak_bytes=peak,
        low_bytes=round(peak * LOW),
        high_bytes=round(peak * HIGH),
        ledger=_ledger(trace, memory, peak),
        trace=trace,
        interval_basis=BASIS,
        calibration=_calibration(memory, choices),
        what_if=tuple(choices.what_if(change, usable) for change in wanted.what_if),
        notes=tuple(_notes(memory, step, batch)),
    )
    if not wanted.with_table:
        return plan
    laid_out = replace(plan, table=choices.rows(usable))
    return replace(laid_out, advice=advise(laid_out, of_script=True))


def _trace(memory: ScriptMemory, choices: ScriptChoices) -> StepTrace:
    own, peak = choices.own, choices.peak(choices.own)
    whole = choices.peak_bytes(own)
    owners = _owners(memory, peak)
    trained = sum(math.prod(one.shape) * one.count for one in memory.trained)
    return StepTrace(
        model=", ".join(memory.models) or "a model",
        parameters=trained,
        batch_size=own.batch_size or 0,
        precision=own.precision,
        recompute=own.recompute,
        kernels="as in the script",
        optimizer=own.optimizer,
        owners={owner: size for owner, size in owners.items() if size},
        peak_bytes=whole,
        peak_place=(peak.place,),
        peak_operation="estimated",
        saved_bytes=peak.most_saved_bytes,
        gradient_bytes=trained_bytes(memory),
        reserved_bytes=whole,
        optimizer_bytes=choices.states,
        operations=(),
    )


def _owners(memory: ScriptMemory, peak: Peak) -> dict[str, int]:
    return {
        "parameters": weights_bytes(memory, frozen=False) + weights_bytes(memory, frozen=True),
        "gradients": peak.gradient_bytes,
        "optimizer state": memory.optimizer_bytes,
        "buffers": memory.buffers_bytes,
        "activations": peak.saved_bytes,
        "temporary": peak.temporary_bytes,
    }


_BASES: Final = {"temporary": "estimated", "activations": "saved tensors seen"}


def _ledger(trace: StepTrace, memory: ScriptMemory, peak_bytes: int) -> tuple[LedgerRow, ...]:
    rows = [
        LedgerRow(owner=owner, num_bytes=size, basis=_BASES.get(owner, "seen in the script"))
        for owner, size in trace.owners.items()
    ]
    rows.append(LedgerRow(owner="workspaces", num_bytes=WORKSPACE_BYTES, basis="allowance"))
    rest = peak_bytes - sum(row.num_bytes for row in rows)
    if rest and memory.device_peak_bytes is not None:
        rows.append(LedgerRow(owner="calibration", num_bytes=rest, basis="measured on this GPU"))
    return tuple(rows)


def _calibration(memory: ScriptMemory, choices: ScriptChoices) -> Calibration | None:
    if memory.device_peak_bytes is None:
        return None
    return Calibration(
        run="the script's own steps on this GPU",
        measured_bytes=memory.device_peak_bytes,
        planned_bytes=choices.peak_bytes(choices.own) + WORKSPACE_BYTES,
        factor=choices.correction.factor,
        workspace_bytes=round(choices.correction.workspace_bytes),
    )


def _notes(memory: ScriptMemory, step: SampledStep, batch: BatchShape | None) -> Iterator[str]:
    yield "torch.compile is planned as if it were off; times of scripts are not planned"
    if batch is None:
        yield "other batches are not planned: nothing tells the batch; give it as --batch-size N"
    else:
        share = certain_share(step, batch)
        yield (
            f"other batches: the shapes of {share:.0%} of what is saved say whether it grows "
            f"with the batch ({batch.samples}); the rest is taken to grow with it, and not with "
            "its square, where its first side is a multiple of it"
        )
    totals = [_saved_bytes(one) for one in memory.steps]
    if max(totals) > 1.05 * min(totals):
        yield (
            f"steps differ: the smallest recorded one saves {min(totals) / max(totals):.0%} of "
            "the largest, which is planned; a later step may be larger"
        )
    if memory.world_size > 1:
        yield f"one of {memory.world_size} ranks; what they exchange is not in the sum"
    if any(piece.kind == "elsewhere" for piece in step.pieces):
        yield "what the script's own saved_tensors_hooks take away is not counted"


def _saved_bytes(step: SampledStep) -> int:
    saved = {one.storage: one.num_bytes for one in step.pieces if one.kind != "gradient"}
    return sum(saved.values())


def _why_nothing(
    command: Sequence[str], ended: Ended, memory: ScriptMemory | None, failure: str | None
) -> str:
    """Say in a sentence why there is no plan, and what to do instead."""
    name = shlex.join(command)
    if failure and _ASKS_FOR_GPU.search(failure) and not torch.cuda.is_available():
        return f"{name} asks for a GPU, and there is none here ({failure}); {_BUILD}"
    if memory is not None and memory.problem is not None:
        return f"{name} cannot be planned: {memory.problem}; {_BUILD}"
    if failure is not None:
        return f"{name} failed before its first steps were recorded ({failure})"
    if memory is not None and memory.steps:
        return f"{name} keeps nothing for backward in the thread that trains; {_BUILD}"
    steps = 0 if memory is None else memory.seen_steps
    how = f"by {ended.signal}" if ended.signal else f"with exit code {ended.exit_code}"
    what_to_do = f"let it train longer, or {_BUILD}"
    if ended.exit_code:
        what_to_do = "its own output says why: let it train by itself first"
    return (
        f"{name} ended {how} after {steps} optimizer steps, and a plan needs {_FEWEST}; "
        f"{what_to_do}"
    )
