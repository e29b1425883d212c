"""What a change of settings claims: that every bit stays, that only rounding differs, or neither.

The tables list what is known to leave the arithmetic alone. A setting that is in none of them
claims nothing, so that its quality is tested: a new setting is never passed by mistake.
"""

from collections.abc import Mapping
from typing import Final

from pitstop.config.dump import flat_settings
from pitstop.config.sections import RunConfig
from pitstop.records.verify.verification import ChangedSetting, Claim

EXACT: Final = (
    "run.name",
    "run.work_dir",
    "loader.workers",
    "loader.prefetch",
    "loader.prefetch_bytes",
    "loader.eval_workers",
    "loader.eval_prefetch",
    "loader.pin",
    "loader.persistent",
    "loader.start_method",
    "loader.tune",
    "cache.",
    "train.recompute",
    "eval.every_steps",
    "checkpoint.",
    "log.",
    "targets.",
)
"""Settings, or groups of them, that change no bit of what is computed."""

ROUNDING: Final = (
    "run.deterministic",
    "model.kernels",
    "model.spike.chunk",
    "model.fusion.chunk",
    "train.precision",
    "train.scaler.",
    "train.compile.",
    "train.channels_last",
    "optimizer.fused",
    "eval.batch_size",
)
"""Settings that compute the same in another order or another number format."""

# The seed is verify's own to set.
_NOT_COMPARED: Final = ("run.seed",)
_BATCH: Final = ("train.batch_size", "train.accumulate")
_STRENGTH: Final[Mapping[Claim, int]] = {"exact": 0, "rounding": 1, "training": 2}


def changed_settings(base: RunConfig, candidate: RunConfig) -> tuple[ChangedSetting, ...]:
    """List the settings in which two configurations differ, and what each change claims."""
    first, second = (dict(flat_settings(one.model_dump(mode="json"))) for one in (base, candidate))
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    same_batch = _effective_batch(base) == _effective_batch(candidate)
    return tuple(
        ChangedSetting(
            key=name,
            base=_shown(first.get(name)),
            candidate=_shown(second.get(name)),
            claim=_claim(name, same_batch=same_batch),
        )
        for name in names
        if name not in _NOT_COMPARED
    )


def claim_of(changes: tuple[ChangedSetting, ...]) -> Claim:
    """Give what all changes together claim: the weakest of them; none at all is exact."""
    claims: list[Claim] = ["exact", *(change.claim for change in changes)]
    return max(claims, key=_STRENGTH.__getitem__)


def _claim(name: str, *, same_batch: bool) -> Claim:
    if name in _BATCH:  # the same samples make a step, in other portions
        return "rounding" if same_batch else "training"
    if _is_listed(name, EXACT):
        return "exact"
    return "rounding" if _is_listed(name, ROUNDING) else "training"


def _is_listed(name: str, table: tuple[str, ...]) -> bool:
    return any(name.startswith(one) if one.endswith(".") else name == one for one in table)


def _effective_batch(config: RunConfig) -> int:
    return config.train.batch_size * config.train.accumulate


def _shown(value: object) -> str:
    return "null" if value is None else str(value)
