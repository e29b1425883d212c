"""Other choices for a script: batch x recomputation x precision x optimizer, from one recording."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch

from pitstop.errors import PitstopError
from pitstop.plan.correction import Correction, correction_of
from pitstop.plan.memory import WORKSPACE_BYTES, fit_of
from pitstop.plan.script.batch import BatchShape
from pitstop.plan.script.replay import (
    Choice,
    Peak,
    Replay,
    has_blocks,
    script_precision,
    script_recomputes,
    weights_bytes,
)
from pitstop.records.plans.plan import PlanRow, WhatIf
from pitstop.records.plans.script import SampledStep, ScriptMemory
from pitstop.train.optim.build import planned_state_bytes

OPTIMIZERS: Final = ("sgd", "adamw", "adamw8bit")
_TIMES: Final = (0.5, 1, 2, 4)
_REPLAY_ERROR: Final = 0.1
"""Of what belongs to samples, as replayed (docs/accuracy.md)."""
_SAME_STATE: Final = {"adam": "adamw", "nadam": "adamw", "radam": "adamw"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One choice, optimizer included."""

    batch_size: int | None
    recompute: str
    precision: str
    optimizer: str


class ScriptChoices:
    """What a script would hold under other settings.

    Args:
        memory: What was recorded.
        step: The step to go by.
        batch: Its batch; None where nothing tells it.
        on_gpu: Whether for a GPU, or for where it was recorded.
    """

    def __init__(
        self,
        memory: ScriptMemory,
        step: SampledStep,
        batch: BatchShape | None,
        *,
        on_gpu: bool = True,
    ) -> None:
        self.memory = memory
        self._replay = Replay(memory, step, batch, on_gpu=on_gpu)
        self._batch = batch
        self._can_recompute = has_blocks(step) and not script_recomputes(step)
        self._recomputes = script_recomputes(step)
        self.correction = Correction()
        """By what a GPU held, where one was there."""
        self.own = Settings(
            batch_size=None if batch is None else batch.samples,
            recompute="as in the script" if self._recomputes else "none",
            precision=script_precision(memory),
            optimizer=_optimizer_of(memory),
        )
        self.states = self._states()
        fixed = self.fixed_bytes(self.own.optimizer)
        if memory.device_peak_bytes is not None and memory.device_peak_bytes > fixed:
            # What libraries take of torch's memory is in what was measured.
            planned = self.peak_bytes(self.own) + WORKSPACE_BYTES
            self.correction = correction_of(
                memory.device_peak_bytes,
                planned_bytes=planned,
                samples_bytes=self.peak(self.own).total_bytes,
                samples_error=_REPLAY_ERROR,
            )

    def peak(self, settings: Settings) -> Peak:
        """Play the step with settings."""
        return self._replay.peak(
            Choice(
                batch_size=settings.batch_size,
                precision=settings.precision,
                recompute=settings.recompute,
                updates_at_once=self._updates_at_once(settings.optimizer),
            )
        )

    def _updates_at_once(self, optimizer: str) -> bool:
        """Whether an update makes as much again as there are weights, as torch's Adam does."""
        is_fused = optimizer == self.own.optimizer and self.memory.fused_update
        return "adam" in optimizer and optimizer != "adamw8bit" and not is_fused

    def fixed_bytes(self, optimizer: str) -> int:
        """What no batch changes."""
        weights = sum(weights_bytes(self.memory, frozen=frozen) for frozen in (False, True))
        return weights + self.memory.buffers_bytes + self.states[optimizer]

    def peak_bytes(self, settings: Settings) -> int:
        """Most that tensors hold at one time, as replayed."""
        return self.fixed_bytes(settings.optimizer) + self.peak(settings).total_bytes

    def needed_bytes(self, settings: Settings) -> int:
        """Most that the device has to hold, corrected by what a GPU measured if one did."""
        whole = self.peak_bytes(settings) + WORKSPACE_BYTES
        of_samples = self.peak(settings).total_bytes
        return round(self.correction.peak_bytes(whole, samples_bytes=of_samples))

    def rows(self, usable_bytes: int) -> tuple[PlanRow, ...]:
        """Lay out all choices; the best is the largest batch that fits, the least changed."""
        own = self.own
        ways = [
            Settings(
                batch_size=size, recompute=recompute, precision=precision, optimizer=own.optimizer
            )
            for recompute in self._recomputations()
            for precision in self._precisions()
            for size in self._sizes()
        ]
        ways += [replace(own, optimizer=kind) for kind in self.states if kind != own.optimizer]
        return _marked([self._row(each, usable_bytes) for each in ways], own)

    def what_if(self, change: str, usable_bytes: int) -> WhatIf:
        """Say what a change would do.

        Raises:
            PitstopError: It is none that a script's plan knows.
        """
        settings = self._changed(change)
        peak = self.needed_bytes(settings)
        return WhatIf(
            change=change,
            peak_bytes=peak,
            fit=fit_of(peak, usable_bytes),
            more_bytes=peak - self.needed_bytes(self.own),
        )

    def _changed(self, change: str) -> Settings:
        key, _, value = change.partition("=")
        name = key.removeprefix("train.").removesuffix(".kind")
        allowed: dict[str, tuple[str, ...]] = {
            "recompute": self._recomputations(),
            "precision": self._precisions(),
            "optimizer": tuple(self.states),
        }
        if name == "batch_size":
            if not value.isdecimal() or not int(value):
                raise PitstopError(f"--what-if {change}: batch_size is a number of samples")
            if self._batch is None:
                raise PitstopError(
                    f"--what-if {change}: the script's batch could not be told; give it as "
                    "--batch-size N"
                )
            return replace(self.own, batch_size=int(value))
        if name not in allowed or value not in allowed[name]:
            known = ", ".join(f"{key}={'|'.join(values)}" for key, values in allowed.items())
            raise PitstopError(
                f"--what-if {change}: of a script these can be changed: batch_size=N, {known}"
            )
        return replace(self.own, **{name: value})

    def _recomputations(self) -> tuple[str, ...]:
        if self._recomputes:
            return (self.own.recompute, "none")
        return ("none", "full") if self._can_recompute else ("none",)

    def _precisions(self) -> tuple[str, ...]:
        own = self.own.precision
        return tuple(dict.fromkeys((own, "fp32", "bf16"))) if own in ("fp32", "bf16") else (own,)

    def _sizes(self) -> Iterator[int | None]:
        own = self.own.batch_size
        if own is None:
            yield None
            return
        yield from (int(own * times) for times in _TIMES if own * times >= 1)

    def _states(self) -> dict[str, int]:
        """Bytes of state by kind: the script's own as it was seen, others worked out."""
        weights = [
            torch.empty(one.shape, dtype=getattr(torch, one.dtype), device="meta")
            for one in self.memory.trained
            for _ in range(one.count)
        ]
        own = self.own.optimizer
        others = [kind for kind in OPTIMIZERS if kind != _SAME_STATE.get(own, own)]
        planned = {kind: planned_state_bytes(kind, weights, momentum=0.9) for kind in others}
        return {own: self.memory.optimizer_bytes, **planned}

    def _row(self, settings: Settings, usable_bytes: int) -> PlanRow:
        peak = self.needed_bytes(settings)
        return PlanRow(
            batch_size=settings.batch_size or 0,
            recompute=settings.recompute,
            precision=settings.precision,
            optimizer=settings.optimizer,
            peak_bytes=peak,
            fit=fit_of(peak, usable_bytes),
            basis="recorded" if settings == self.own else "derived",
            configured=settings == self.own,
        )


def _optimizer_of(memory: ScriptMemory) -> str:
    kinds = dict.fromkeys(name.lower() for name in memory.optimizers)
    return " and ".join(kinds) or "none"


def _marked(rows: list[PlanRow], own: Settings) -> tuple[PlanRow, ...]:
    """Mark the largest batch that fits; among equals the one that changes least."""
    fitting = [row for row in rows if row.fit == "fits" and row.optimizer == own.optimizer]
    best = max(
        fitting,
        key=lambda row: (
            row.batch_size,
            row.recompute == own.recompute,
            row.precision == own.precision,
            -row.peak_bytes,
        ),
        default=None,
    )
    return tuple(replace(row, best=row is best) for row in rows)
