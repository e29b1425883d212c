"""What may be changed to make a run faster, as data.

A knob gives its choices for a configuration and a machine, in an order in which neighbours are
alike; the configuration's own choice, which changes nothing, is among them. Every choice is laid
over the configuration and checked by its rules before it is tried, so a knob need not know them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pitstop.config.sections import RunConfig
from pitstop.config.workloads.deblur import DeblurLoss
from pitstop.tune.search import Side

Choice = tuple[str, ...]
"""Overrides, as one writes them on a command line; none for the configuration's own."""

OWN: Final[Choice] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What choices depend on."""

    config: RunConfig
    cores: int
    """Cores that the run may use."""
    has_gpu: bool
    free_bytes: int | None = None
    """Host memory that a cache could have; None where that is not known."""


At = TypeVar("At")
"""What the choices of a knob depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob(Generic[At]):
    """One thing to change."""

    name: str
    choices: Callable[[At], tuple[Choice, ...]]
    """One that is empty or has one choice only is left alone."""
    side: Side = "step"
    ordered: bool = False
    asked_by: tuple[str, ...] = ()
    """Findings whose bound says how much it can give."""


def _batches(at: Situation) -> tuple[Choice, ...]:
    """Every way to cut the effective batch into equal micro-batches."""
    own = at.config.train.batch_size
    effective = own * at.config.train.accumulate
    sizes = (size for size in range(1, effective + 1) if effective % size == 0)
    return tuple(
        OWN
        if size == own
        else (f"train.batch_size={size}", f"train.accumulate={effective // size}")
        for size in sizes
    )


def _workers(at: Situation) -> tuple[Choice, ...]:
    own = at.config.loader.workers
    counts = {0, 1, 2, at.cores // 2, at.cores - 1, at.cores}
    if not isinstance(own, int):
        return (OWN, *_settings("loader.workers", sorted(counts)))
    return _around(own, sorted(counts | {own}), "loader.workers")


def _prefetch(at: Situation) -> tuple[Choice, ...]:
    if at.config.loader.prefetch_bytes is not None or at.config.loader.tune == "auto":
        return ()
    own = at.config.loader.prefetch
    return _around(own, sorted({own, 2, 4, 8}), "loader.prefetch")


def _precisions(at: Situation) -> tuple[Choice, ...]:
    own = at.config.train.precision
    wanted = ("tf32", "bf16") if at.has_gpu else ("bf16",)
    return (OWN, *_settings("train.precision", [each for each in wanted if each != own]))


def _recomputing(at: Situation) -> tuple[Choice, ...]:
    """From all to nothing: each saves arithmetic and takes memory.

    Where nothing is recomputed, doing so gains only what a larger micro-batch does.
    """
    own = at.config.train.recompute
    if own == "none" and at.config.train.accumulate == 1:
        return ()
    ways = ("full", "ffn", "attention", "none")
    return tuple(OWN if way == own else (f"train.recompute={way}",) for way in ways) + (
        () if own in ways else (OWN,)
    )


def _compiling(at: Situation) -> tuple[Choice, ...]:
    own = at.config.train.compile.scope
    ways = [way for way in ("off", "regions", "whole") if way != own]
    return (OWN, *_settings("train.compile.scope", ways)) if at.has_gpu else ()


def _kernels(at: Situation) -> tuple[Choice, ...]:
    own = at.config.model.kernels
    ways = [way for way in ("reference", "fused") if way != own]
    return (OWN, *_settings("model.kernels", ways)) if at.has_gpu else ()


def _optimizers(at: Situation) -> tuple[Choice, ...]:
    section = at.config.optimizer
    choices: list[Choice] = [OWN]
    if section.fused == "off":
        choices.append(("optimizer.fused=auto",))
    if section.kind == "adamw" and at.has_gpu:
        choices += _settings("optimizer.kind", ["adamw_bf16", "adamw8bit"])
    return tuple(choices)


def _layouts(at: Situation) -> tuple[Choice, ...]:
    other = str(not at.config.train.channels_last).lower()
    return (OWN, (f"train.channels_last={other}",))


def _worker_lives(at: Situation) -> tuple[Choice, ...]:
    loader = at.config.loader
    changed = () if loader.persistent else ("loader.persistent=true",)
    changed += () if loader.pin or not at.has_gpu else ("loader.pin=true",)
    return (OWN, changed) if changed else ()


def _caches(at: Situation) -> tuple[Choice, ...]:
    """Nothing, or at most half of what is free; what fits stays, which no order of reading defeats.

    A power of two, for a study that goes on later, when other memory is free, tries the same.
    """
    half_mib = (at.free_bytes or 0) // 2**21
    if at.config.cache.budget or not half_mib:
        return ()
    return (OWN, (f"cache.budget={2 ** (half_mib.bit_length() - 1)}MiB", "cache.policy=keep"))


def _records(at: Situation) -> tuple[Choice, ...]:
    log, seldom = at.config.log, 50
    changed = [
        f"log.{name}={seldom}"
        for name in ("every_steps", "progress_every_steps", "norm_every_steps")
        if (getattr(log, name) or seldom) < seldom
    ]
    return (OWN, tuple(changed)) if changed else ()


def _evaluations(at: Situation) -> tuple[Choice, ...]:
    every = at.config.eval.every_steps
    return () if every is None else (OWN, (f"eval.every_steps={10 * every}",))


def _saves(at: Situation) -> tuple[Choice, ...]:
    every = at.config.checkpoint.every_steps
    return () if every is None else (OWN, (f"checkpoint.every_steps={10 * every}",))


def _perceptual_cadence(at: Situation) -> tuple[Choice, ...]:
    loss = at.config.loss
    if not isinstance(loss, DeblurLoss) or not loss.perceptual.weight:
        return ()
    own = loss.perceptual.every_steps
    return _around(own, sorted({own, 2, 4}), "loss.perceptual.every_steps")


def _settings(key: str, values: list[int] | list[str]) -> list[Choice]:
    return [(f"{key}={value}",) for value in values]


def _around(own: int, counts: list[int], key: str) -> tuple[Choice, ...]:
    return tuple(OWN if count == own else (f"{key}={count}",) for count in counts)


# Where nothing is promised: first what gains most and takes less memory, so that trials after it
# are short and fit; last of what changes a step the dear start of compiling.
KNOBS: Final[tuple[Knob[Situation], ...]] = (
    Knob(name="precision", choices=_precisions, asked_by=("PREC001", "TENSOR001")),
    Knob(name="kernels", choices=_kernels, asked_by=("TRAFFIC001",)),
    Knob(name="recompute", choices=_recomputing, ordered=True, asked_by=("RECOMP001",)),
    Knob(name="micro-batch", choices=_batches, ordered=True, asked_by=("LAUNCH001", "BATCH001")),
    Knob(name="channels-last", choices=_layouts),
    Knob(name="optimizer", choices=_optimizers, asked_by=("OPT001",)),
    Knob(name="compile", choices=_compiling),
    Knob(
        name="workers", choices=_workers, side="run", ordered=True, asked_by=("DATA001", "DATA004")
    ),
    Knob(name="prefetch", choices=_prefetch, side="run", ordered=True, asked_by=("DATA001",)),
    Knob(name="worker lives", choices=_worker_lives, side="run", asked_by=("DATA002", "COPY001")),
    Knob(name="cache", choices=_caches, side="run", asked_by=("DATA001",)),
    Knob(name="records", choices=_records, side="run", asked_by=("LOG001", "SYNC001")),
    Knob(name="evaluation", choices=_evaluations, side="run", asked_by=("EVAL001",)),
    Knob(name="checkpoints", choices=_saves, side="run", asked_by=("CKPT001",)),
    Knob(
        name="perceptual cadence", choices=_perceptual_cadence, ordered=True, asked_by=("LOSS001",)
    ),
)
