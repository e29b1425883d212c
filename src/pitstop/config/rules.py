"""Which settings go together: a setting that would do nothing is refused, with the reason.

Three tables. Inert: a setting somebody wrote down that nothing would read. Conflicts: settings that
contradict each other, or one that is missing. Risks: allowed, but said aloud. A default that is
inert is nobody's mistake, so the first and the last look only at what was written; and to say that
something is off where it cannot be on is no mistake either.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from pitstop.config.sections import LossSection, LossTerm, RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that can be wrong between settings that are each fine alone.

    Attributes:
        key: The setting to report.
        reads: The other settings that decide; the rule is silent where one of them is invalid.
        broken: Says whether the rule is broken.
        why: The message; `{c.train.precision}` stands for the setting of that name.
    """

    key: str
    reads: tuple[str, ...]
    broken: Callable[[RunConfig], bool]
    why: str

    def explain(self, config: RunConfig) -> str:
        """Fill the values of this configuration into the message."""
        return self.why.format(c=config)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """The three tables together; a workload adds its own to the common ones."""

    inert: tuple[Rule, ...] = ()
    conflicts: tuple[Rule, ...] = ()
    risks: tuple[Rule, ...] = ()

    def __add__(self, other: "RuleSet") -> "RuleSet":
        return RuleSet(
            inert=self.inert + other.inert,
            conflicts=self.conflicts + other.conflicts,
            risks=self.risks + other.risks,
        )


def rules_for(
    keys: Iterable[str], *, reads: tuple[str, ...], broken: Callable[[RunConfig], bool], why: str
) -> tuple[Rule, ...]:
    """Make the same rule for several settings."""
    return tuple(Rule(key=key, reads=reads, broken=broken, why=why) for key in keys)


def idle_while(other: str, value: object, why: str, /, *keys: str) -> tuple[Rule, ...]:
    """Make the rules for settings that nothing reads while another one has this value."""
    value_of = attrgetter(other)
    return rules_for(
        keys,
        reads=(other,),
        broken=lambda c: value_of(c) == value,
        why=f"has no effect: {why}",
    )


def read_only_by(
    readers: tuple[str, ...], other: str, /, *keys: str, why: str | None = None
) -> tuple[Rule, ...]:
    """Make the rules for settings that nothing reads unless another one is one of these words."""
    value_of = attrgetter(other)
    said = f"only {' and '.join(readers)} read{'s' * (len(readers) == 1)} it"
    return rules_for(
        keys,
        reads=(other,),
        broken=lambda c: value_of(c) not in readers,
        why=why or f"has no effect: {said}, and {other} is {{c.{other}}}",
    )


def loss_rules(loss: type[LossSection]) -> RuleSet:
    """Derive the rules about terms of weight 0 from a workload's loss section."""
    terms = {
        name: field.annotation
        for name, field in loss.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, LossTerm)
    }
    inert: list[Rule] = []
    for term, section in terms.items():
        inert += rules_for(
            (f"loss.{term}.{name}" for name in section.model_fields if name != "weight"),
            reads=(f"loss.{term}.weight",),
            broken=lambda c, term=term: getattr(c.loss, term).weight == 0,
            why=f"has no effect: loss.{term}.weight is 0",
        )
    nothing_left = Rule(
        key="loss",
        reads=tuple(f"loss.{term}.weight" for term in terms),
        broken=lambda c: bool(terms) and all(getattr(c.loss, term).weight == 0 for term in terms),
        why="leaves nothing to train on: every weight is 0",
    )
    return RuleSet(inert=tuple(inert), conflicts=(nothing_left,))


def _evaluates_without_workers(config: RunConfig) -> bool:
    loader = config.loader
    return (loader.workers if loader.eval_workers is None else loader.eval_workers) == 0


def _is_estimated(config: RunConfig) -> bool:
    """Whether bytes alone decide how far workers read ahead."""
    loader = config.loader
    return loader.prefetch_bytes is not None and loader.tune == "off" and loader.workers != 0


_WEIGHTS_INERT: Final = (
    Rule(
        key="model.weights_key",
        reads=("model.weights",),
        broken=lambda c: c.model.weights is None and c.model.weights_key is not None,
        why="has no effect: model.weights is not set",
    ),
)

NO_CROPS: Final = rules_for(
    ("train.crop_schedule", "eval.tile"),
    reads=("model.kind",),
    broken=lambda _: True,
    why="has no effect: {c.model.kind} sees images of data.image_size, never crops or tiles",
)
"""Of the workloads whose images all have one size."""

_NO_WORKERS: Final = "has no effect: loader.workers is 0, so there are no worker processes"
_LOADER_INERT: Final = (
    Rule(
        key="loader.prefetch_bytes",
        reads=("loader.workers",),
        broken=lambda c: c.loader.workers == 0,
        why=_NO_WORKERS,
    ),
    Rule(
        key="loader.persistent",
        reads=("loader.workers",),
        broken=lambda c: c.loader.persistent and c.loader.workers == 0,
        why=_NO_WORKERS,
    ),
    Rule(
        key="loader.prefetch",
        reads=("loader.workers", "loader.eval_workers", "loader.eval_prefetch"),
        broken=lambda c: (
            c.loader.workers == 0
            and (_evaluates_without_workers(c) or c.loader.eval_prefetch is not None)
        ),
        why=_NO_WORKERS,
    ),
    Rule(
        key="loader.prefetch",
        reads=("loader.workers", "loader.prefetch_bytes", "loader.tune"),
        broken=_is_estimated,
        why="has no effect: loader.prefetch_bytes says how many batches are prepared ahead; leave "
        "one of them out",
    ),
    Rule(
        key="loader.start_method",
        reads=("loader.workers", "loader.eval_workers"),
        broken=lambda c: c.loader.workers == 0 and _evaluates_without_workers(c),
        why=_NO_WORKERS,
    ),
    Rule(
        key="loader.eval_prefetch",
        reads=("loader.workers", "loader.eval_workers"),
        broken=_evaluates_without_workers,
        why="has no effect: evaluation has no worker processes",
    ),
    Rule(
        key="loader.tune",
        reads=("loader.workers",),
        broken=lambda c: c.loader.tune == "auto" and c.loader.workers != "auto",
        why="has no effect: loader.workers is fixed at {c.loader.workers}; tuning needs auto",
    ),
    *idle_while("cache.budget", 0, "cache.budget is 0, so there is no cache", "cache.policy"),
)

_TRAIN_INERT: Final = (
    *read_only_by(
        ("fp16",),
        "train.precision",
        "train.scaler",
        why="has no effect: only fp16 has a loss scale, and train.precision is {c.train.precision}",
    ),
    Rule(
        key="train.compile.mode",
        reads=("train.compile.scope",),
        broken=lambda c: c.train.compile.scope == "off" and c.train.compile.mode != "default",
        why="has no effect: train.compile.scope is off",
    ),
    *idle_while("train.clip.kind", "none", "train.clip.kind is none", "train.clip.norm"),
    *rules_for(
        (f"train.clip.{name}" for name in ("quantile", "window", "factor", "min_norm", "max_norm")),
        reads=("train.clip.kind",),
        broken=lambda c: c.train.clip.kind != "adaptive",
        why="has no effect: only adaptive clipping reads it, and train.clip.kind is "
        "{c.train.clip.kind}",
    ),
    Rule(
        key="train.ema",
        reads=(),
        broken=lambda c: c.train.ema == 0,
        why="has no effect: a decay of 0 only copies the weights; leave it out",
    ),
    Rule(
        key="train.shard_ranks",
        reads=("train.shard",),
        broken=lambda c: c.train.shard != "hybrid" and c.train.shard_ranks is not None,
        why="has no effect: only hybrid reads it, and train.shard is {c.train.shard}",
    ),
    *idle_while(
        "train.distill.teacher", None, "train.distill.teacher is not set", "train.distill.weight"
    ),
)


def _is_adam(config: RunConfig) -> bool:
    return config.optimizer.kind != "sgd"


_OPTIMIZER_INERT: Final = (
    *idle_while(
        "optimizer.kind", "sgd", "optimizer.kind is sgd", "optimizer.betas", "optimizer.eps"
    ),
    *read_only_by(("sgd",), "optimizer.kind", "optimizer.momentum"),
    Rule(
        key="optimizer.nesterov",
        reads=("optimizer.kind",),
        broken=lambda c: c.optimizer.nesterov and _is_adam(c),
        why="has no effect: only sgd reads it, and optimizer.kind is {c.optimizer.kind}",
    ),
    Rule(
        key="optimizer.nesterov",
        reads=("optimizer.kind", "optimizer.momentum"),
        broken=lambda c: not _is_adam(c) and c.optimizer.nesterov and c.optimizer.momentum == 0,
        why="has no effect: optimizer.momentum is 0",
    ),
    Rule(
        key="optimizer.fused",
        reads=("optimizer.kind",),
        broken=lambda c: (
            c.optimizer.fused == "on" and c.optimizer.kind in {"adamw8bit", "adamw_bf16"}
        ),
        why="has no effect: {c.optimizer.kind} has one form only",
    ),
    Rule(
        key="optimizer.lr_scaling",
        reads=("train.accumulate", "optimizer.reference_batch"),
        broken=lambda c: (
            c.optimizer.lr_scaling != "none"
            and c.optimizer.reference_batch is None
            and c.train.accumulate == 1
        ),
        why="has no effect: the factor is 1 while train.accumulate is 1 and "
        "optimizer.reference_batch is not set",
    ),
    *idle_while(
        "optimizer.lr_scaling",
        "none",
        "optimizer.lr_scaling is none",
        "optimizer.reference_batch",
    ),
    Rule(
        key="optimizer.lr_multipliers",
        reads=(),
        broken=lambda c: any(factor == 1 for _, factor in c.optimizer.lr_multipliers),
        why="has an entry without effect: a factor of 1 changes nothing",
    ),
)

_SCHEDULE_INERT: Final = (
    *idle_while("schedule.warmup_steps", 0, "schedule.warmup_steps is 0", "schedule.warmup_start"),
    *read_only_by(("cosine", "poly"), "schedule.kind", "schedule.end_factor"),
    *read_only_by(("poly",), "schedule.kind", "schedule.power"),
    *read_only_by(("step",), "schedule.kind", "schedule.milestones", "schedule.gamma"),
)

_CADENCE_INERT: Final = (
    *idle_while("eval.tile", None, "eval.tile is not set", "eval.tile_overlap"),
    *idle_while(
        "checkpoint.every_steps",
        None,
        "checkpoint.every_steps is null, so there is one checkpoint, at the end",
        "checkpoint.keep_last",
    ),
    *idle_while(
        "eval.every_steps",
        None,
        "eval.every_steps is not set, so there is one evaluation, at the end",
        "checkpoint.best_of",
    ),
)


def _shards(config: RunConfig) -> bool:
    return config.train.shard != "none"


_SHARD_CONFLICTS: Final = (
    Rule(
        key="optimizer.kind",
        reads=("train.shard",),
        broken=lambda c: _shards(c) and c.optimizer.kind == "adamw8bit",
        why="cannot be adamw8bit with train.shard: it keeps one scale for 256 numbers, which lie "
        "on several ranks; set it to adamw",
    ),
    Rule(
        key="optimizer.kind",
        reads=("train.shard",),
        broken=lambda c: _shards(c) and c.optimizer.kind == "adamw_bf16",
        why="cannot be adamw_bf16 with train.shard: it rounds at random by the place in the whole "
        "tensor, of which a rank has a part; set it to adamw",
    ),
    Rule(
        key="train.compile.scope",
        reads=("train.shard",),
        broken=lambda c: _shards(c) and c.train.compile.scope == "whole",
        why="cannot be whole with train.shard: weights are gathered between blocks, where the "
        "graph would break; set it to regions",
    ),
    Rule(
        key="train.compile.mode",
        reads=("train.shard", "train.compile.scope"),
        broken=lambda c: (
            _shards(c)
            and c.train.compile.scope != "off"
            and c.train.compile.mode in {"reduce-overhead", "max-autotune"}
        ),
        why="cannot be {c.train.compile.mode} with train.shard: a recorded graph reads weights "
        "where they were, and they are gathered anew for each block; set it to default",
    ),
    Rule(
        key="train.channels_last",
        reads=("train.shard",),
        broken=lambda c: _shards(c) and c.train.channels_last,
        why="cannot be set with train.shard: weights are divided by their first dimension, for "
        "which they must be contiguous",
    ),
)

_CONFLICTS: Final = (
    Rule(
        key="train.steps",
        reads=("train.epochs",),
        broken=lambda c: c.train.steps is None and c.train.epochs is None,
        why="is missing: set train.steps or train.epochs",
    ),
    Rule(
        key="train.epochs",
        reads=("train.steps",),
        broken=lambda c: c.train.steps is not None and c.train.epochs is not None,
        why="cannot be set together with train.steps; set one of them to null",
    ),
    Rule(
        key="train.on_nan",
        reads=("checkpoint.every_steps",),
        broken=lambda c: c.train.on_nan == "rollback" and c.checkpoint.every_steps is None,
        why="cannot be rollback: checkpoint.every_steps is null, so there is nothing to go back to",
    ),
    Rule(
        key="train.clip.min_norm",
        reads=("train.clip.max_norm", "train.clip.kind"),
        broken=lambda c: (
            c.train.clip.kind == "adaptive" and c.train.clip.min_norm > c.train.clip.max_norm
        ),
        why="must not be above train.clip.max_norm, which is {c.train.clip.max_norm:g}",
    ),
    *_SHARD_CONFLICTS,
    Rule(
        key="schedule.milestones",
        reads=("schedule.kind",),
        broken=lambda c: c.schedule.kind == "step" and not c.schedule.milestones,
        why="is missing: schedule.kind is step",
    ),
    Rule(
        key="schedule.milestones",
        reads=(),
        broken=lambda c: list(c.schedule.milestones) != sorted(set(c.schedule.milestones)),
        why="must rise from step to step",
    ),
    Rule(
        key="eval.tile_overlap",
        reads=("eval.tile",),
        broken=lambda c: c.eval.tile is not None and c.eval.tile_overlap >= c.eval.tile,
        why="must be less than eval.tile, which is {c.eval.tile}",
    ),
)


def _forgets_too_soon(config: RunConfig) -> bool:
    order = getattr(config.data, "order", "shuffle")
    return config.cache.budget > 0 and config.cache.policy == "lru" and order == "shuffle"


def _never_reached(key: str, step_of: Callable[[RunConfig], int | None], /) -> Rule:
    def broken(config: RunConfig) -> bool:
        step = step_of(config)
        return config.train.steps is not None and step is not None and step > config.train.steps

    why = "is never reached: the run has {c.train.steps} steps"
    return Rule(key=key, reads=("train.steps",), broken=broken, why=why)


_RISKS: Final = (
    _never_reached("eval.every_steps", lambda c: c.eval.every_steps),
    _never_reached("checkpoint.every_steps", lambda c: c.checkpoint.every_steps),
    _never_reached("log.every_steps", lambda c: c.log.every_steps),
    _never_reached("log.norm_every_steps", lambda c: c.log.norm_every_steps),
    _never_reached("log.memory_every_steps", lambda c: c.log.memory_every_steps),
    _never_reached("schedule.milestones", lambda c: max(c.schedule.milestones, default=None)),
    Rule(
        key="cache.policy",
        reads=("cache.budget", "data.order"),
        broken=_forgets_too_soon,
        why="is lru, which in a shuffled epoch drops what the next epoch wants: where a sixth of "
        "the dataset fits, keep has a hit rate of a sixth and lru a tenth of that",
    ),
    Rule(
        key="schedule.warmup_steps",
        reads=("train.steps",),
        broken=lambda c: c.train.steps is not None and c.schedule.warmup_steps >= c.train.steps,
        why="lasts as long as the run ({c.train.steps} steps): the full rate is never reached",
    ),
    Rule(
        key="train.crop_schedule",
        reads=("train.epochs",),
        broken=lambda c: (
            c.train.epochs is not None
            and any(epoch >= c.train.epochs for epoch, _ in c.train.crop_schedule)
        ),
        why="has an epoch that is never reached: the run has {c.train.epochs} epochs",
    ),
    Rule(
        key="train.scaler.start",
        reads=("train.precision",),
        broken=lambda c: c.train.precision == "fp16" and c.train.scaler.start > 65536,
        why="is high: fp16 ends at 65504, so more gradients overflow, and the first steps are "
        "left out until the scale has come down",
    ),
    Rule(
        key="train.compile.mode",
        reads=("train.compile.scope", "run.deterministic"),
        broken=lambda c: (
            c.run.deterministic
            and c.train.compile.scope != "off"
            and c.train.compile.mode.startswith("max-autotune")
        ),
        why="picks kernels by timing them, so run.deterministic cannot promise equal bits",
    ),
)

COMMON: Final = RuleSet(
    inert=_WEIGHTS_INERT
    + _LOADER_INERT
    + _TRAIN_INERT
    + _OPTIMIZER_INERT
    + _SCHEDULE_INERT
    + _CADENCE_INERT,
    conflicts=_CONFLICTS,
    risks=_RISKS,
)
