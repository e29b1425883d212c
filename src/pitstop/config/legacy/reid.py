"""What became of the re-identification guide's keys.

The guide names settings in prose and in a Python configuration, the re-identification field writes
the same ones under SOLVER, DATALOADER and other groups; so only the last part of a key counts here,
in either case of letters. A key that neither of them is known to have is listed as unknown.
"""

from typing import Any, Final

from pitstop.config.legacy.verdicts import (
    Guide,
    Judge,
    OldKey,
    Status,
    Verdict,
    change,
    is_true,
    keep,
    no_effect,
)


def _clip_kind(old: OldKey) -> Verdict:
    if not is_true(old.value):
        return Verdict(
            status=Status.CHANGED,
            key="train.clip.kind",
            value="fixed",
            reason="a kind, not a switch",
        )
    reason = "a kind, not a switch; in the original norms were recorded only every NORM_EVERY "
    reason += (
        "batches, which never met an update under accumulation 2, so the limit stayed at 1.0; "
    )
    reason += "ours sees the norm of every step"
    return Verdict(status=Status.CHANGED, key="train.clip.kind", value="adaptive", reason=reason)


_KEYS: Final[dict[str, Judge]] = {
    "SEED": keep("run.seed"),
    "NUM_WORKERS": keep("loader.workers", "workers of the host, shared over its ranks"),
    "PREFETCH_FACTOR": keep("loader.prefetch"),
    "PERSISTENT_WORKERS": keep("loader.persistent"),
    "PIN_MEMORY": keep("loader.pin"),
    "DROP_LAST": no_effect(
        "torch refuses drop_last beside a batch sampler (ValueError), so the guide's loader cannot "
        "start with it; the pk sampler yields full batches only"
    ),
    "NON_BLOCKING": no_effect(
        "copies overlap only from pinned memory, and the original read a device value right after; "
        "ours always copies so, from pinned memory where loader.pin is on"
    ),
    "IMS_PER_BATCH": keep("train.batch_size"),
    "BATCH_SIZE": keep("train.batch_size"),
    "NUM_INSTANCE": keep("data.records_per_id", "K; P is train.batch_size / K"),
    "INSTANCES_PER_ID": keep("data.records_per_id", "K; P is train.batch_size / K"),
    "ENSURE_RGB": keep("data.ensure_rgb"),
    "PREFER_COMPLETE": change(
        "data.require_pair",
        lambda old: old.value,
        "it was no preference: only people with a pair were taken",
    ),
    "GRADIENT_ACCUMULATION_STEPS": keep(
        "train.accumulate", "pair losses still see one micro-batch: negatives do not grow"
    ),
    "ACCUMULATION_STEPS": keep(
        "train.accumulate", "pair losses still see one micro-batch: negatives do not grow"
    ),
    "LOG_EVERY": change(
        "log.every_steps",
        lambda old: old.value,
        "counted in optimizer steps; the original stalled the GPU 12 times a step however "
        "seldom it logged, ours reads nothing back in between",
    ),
    "NORM_EVERY": change(
        "log.norm_every_steps",
        lambda old: old.value,
        "only the record of the norm; in the original it also switched adaptive clipping off, and "
        "clipping computes the norm anyway, so nothing was saved",
    ),
    "ADAPTIVE_CLIP": _clip_kind,
    "GRAD_CLIP": keep("train.clip.norm"),
    "EPOCHS": keep("train.epochs", "an epoch is one pass over the records (data.epoch_unit)"),
    "MAX_EPOCHS": keep("train.epochs", "an epoch is one pass over the records (data.epoch_unit)"),
}

_FIXED: Final[dict[str, tuple[Any, str]]] = {
    "model.kind": ("clip_reid", "the guide's model"),
    "data.sampler": ("pk", "the guide's sampler"),
    "data.records_per_id": (4, "the guide's K"),
    "data.epoch_unit": (
        "records",
        "the guide printed two units for one run: 35 batches (people) and 1,863 (records / 8)",
    ),
    "train.batch_size": (8, "the guide's batch: 2 people x 4 records"),
    "train.epochs": (60, "the guide's run"),
    "optimizer.lr": (
        2e-5,
        "the guide's rate for adapters and fusion; its backbone took a quarter of it and its "
        "classifier 150 times: say so in optimizer.lr_multipliers. Its 5 epochs of warm-up become "
        "schedule.warmup_steps once the steps of an epoch are known",
    ),
    "optimizer.weight_decay": (1e-4, "the guide's optimizer"),
    "schedule.kind": ("cosine", "the guide's schedule"),
}


def _find(name: str) -> Judge | None:
    return _KEYS.get(name.rpartition(".")[2].upper())


REID_GUIDE: Final = Guide(name="reid", find=_find, fixed=_FIXED)
