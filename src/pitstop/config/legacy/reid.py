"""What became of the re-identification guide's keys.

The guide names settings in prose and in a Python configuration, the re-identification field writes
the same ones under SOLVER, DATALOADER and other groups; so only the last part of a key counts here,
in either case of letters. A key that neither of them is known to have is listed as unknown.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from pitstop.config.legacy.verdicts import (
    Guide,
    Judge,
    KeyVerdict,
    OldKey,
    change,
    changed,
    had_no_effect,
    has_no_counterpart,
    in_lower_case,
    is_true,
    keep,
    lacks,
    no_counterpart,
    no_effect,
    number,
    renamed,
)


def _clip_kind(old: OldKey) -> KeyVerdict:
    if not is_true(old.value):
        return changed("train.clip.kind", "fixed", "a kind, not a switch")
    reason = "a kind, not a switch; in the original norms were recorded only every NORM_EVERY "
    reason += (
        "batches, which never met an update under accumulation 2, so the limit stayed at 1.0; "
    )
    reason += "ours sees the norm of every step"
    return changed("train.clip.kind", "adaptive", reason)


def _root(old: OldKey) -> KeyVerdict:
    path = PurePosixPath(str(old.value))
    if path.name != "train":
        return keep("data.root")(old)
    reason = "the folder that holds the splits; data.split names the part in it"
    return changed("data.root", str(path.parent), reason)


_CLIPS: Final = {
    "base-patch16": "vit_b_16",
    "base-patch32": "vit_b_32",
    "large-patch14": "vit_l_14",
}


def _clip_model(old: OldKey) -> KeyVerdict:
    backbone = next((name for part, name in _CLIPS.items() if part in str(old.value)), None)
    also = {"model.backbone": backbone, "data.tokenizer": old.value}
    reason = "a folder that transformers can read, or a name on its hub; its tokenizer comes along"
    return renamed("model.weights", old.value, reason, also=also)


_RATES: Final = {
    "adapter": "mer_learning_rate",
    "patches": "tokenizer_learning_rate",
    "fusion": "fusion_learning_rate",
}
_CLASSIFIER_LR: Final = 3e-3


def _rates(old: OldKey) -> KeyVerdict:
    base = number(old.value)
    if not base:
        return keep("optimizer.lr")(old)
    rates = {part: number(old.other(name)) for part, name in _RATES.items()}
    rates["classifier"] = number(old.other("head_learning_rate")) or _CLASSIFIER_LR
    factors = {part: float(f"{rate / base:.6g}") for part, rate in rates.items() if rate}
    also = {part: factor for part, factor in factors.items() if factor != 1}
    reason = "the backbone's; the others are factors on it (optimizer.lr_multipliers), the "
    reason += "classifier's of 3e-3 was fixed in the original where head_learning_rate is not set"
    return renamed("optimizer.lr", old.value, reason, also={"optimizer.lr_multipliers": also})


def _lora(old: OldKey) -> KeyVerdict:
    if not is_true(old.other("enable_mer", "true")):
        return changed("model.lora_rank", 0, "enable_mer is off")
    return keep("model.lora_rank")(old)


def _sdm_start(old: OldKey) -> KeyVerdict:
    start = int(number(old.value) or 0)
    value = {0: 0, start: 1} if start else {0: 1}
    reason = "the term begins at this epoch, at once in full; there it rose in steps that the "
    reason += "configuration does not date"
    return changed("loss.sdm.weight_by_epoch", value, reason)


def _has(old: OldKey, name: str) -> bool:
    return any(key.rpartition(".")[2].lower() == name for key in old.values)


def _first_sdm_weight(old: OldKey) -> KeyVerdict:
    """Judge the weight of a matching term that a scheduler took over in later versions."""
    if _has(old, "sdm_weight_final"):
        return had_no_effect("where the scheduler began; it ended at sdm_weight_final")
    # Nothing for five epochs, then a twentieth more each epoch; ours count from 0.
    factors = {0: 0.0} | {4 + part: part / 20 for part in range(1, 21)}
    reason = "the matching term's; its rise from the sixth epoch to the twenty-fifth was fixed in "
    reason += "the original"
    return renamed("loss.sdm.weight", old.value, reason, also={"loss.sdm.weight_by_epoch": factors})


def _first_sdm_temperature(old: OldKey) -> KeyVerdict:
    if _has(old, "sdm_init_temperature"):
        return had_no_effect("the scheduler set another one: sdm_init_temperature")
    return keep("loss.sdm.temperature")(old)


def _conservative(old: OldKey) -> KeyVerdict:
    kinds = [str(value) for key, value in old.values.items() if key.lower().endswith("scheduler")]
    if kinds and not kinds[0].endswith("step"):
        return had_no_effect(f"only step schedules read it, and the schedule is {kinds[0]}")
    return has_no_counterpart("schedule.milestones and schedule.gamma are set by themselves")


def _people(old: OldKey) -> KeyVerdict:
    """Multiply the people of a batch with the records of each, whatever group they stand in."""
    names = {"NUM_INSTANCES", "NUM_INSTANCE", "INSTANCES_PER_ID"}
    found = [value for key, value in old.values.items() if key.rpartition(".")[2].upper() in names]
    people, records = number(old.value), number(found[0]) if found else None
    if people is None or records is None:
        return has_no_counterpart("P people; train.batch_size is P x K, and K is not there")
    reason = f"P x K: {people:g} people x {records:g} records"
    value = int(people * records)
    return changed("train.batch_size", value, reason)


_EPOCHS: Final = keep("train.epochs", "an epoch is one pass over the records (data.epoch_unit)")
_RECORDS_PER_ID: Final = keep("data.records_per_id", "K; P is train.batch_size / K")
_ACCUMULATION: Final = keep(
    "train.accumulate", "pair losses still see one micro-batch: negatives do not grow"
)
_RATE_FACTOR: Final = no_counterpart("a factor in optimizer.lr_multipliers")
_EPOCH_RHYTHM: Final = no_counterpart("counted in epochs; ours is in optimizer steps")
_PART: Final = no_counterpart("part of what model.kind and model.backbone name")
_ALWAYS: Final = no_counterpart("training images are always cropped, mirrored and coloured")
_FEATURE_LENGTH: Final = no_counterpart("the loss has no term on the length of features")
_PAIRS_NEVER_READ: Final = no_effect(
    "the original prints it or never reads it; its sampler decides by min_modal_coverage"
)
_CLASS_KEYS: Final[dict[str, Judge]] = {
    "DATA_ROOT": _root,
    "JSON_FILE": no_counterpart("the captions' file is found in the dataset's folder"),
    "VAL_RATIO": keep("data.holdout"),
    "CLIP_MODEL_NAME": _clip_model,
    "USE_CLIP_BACKBONE": _PART,
    "FUSION_DIM": keep("model.embed_dim"),
    "VISION_HIDDEN_DIM": _PART,
    "ENABLE_MER": no_counterpart("model.lora_rank of 0 is no adapter"),
    "MER_LORA_RANK": _lora,
    "MER_LORA_ALPHA": no_counterpart("the adapters' factor is 1"),
    "MODALITIES": no_counterpart("all that the dataset has"),
    "PATCH_SIZE": _PART,
    "FREEZE_TEXT_BACKBONE": no_counterpart("model.freeze_backbone is for both towers"),
    "DROP_PATH": no_counterpart("the trunk leaves out no block"),
    "IMAGE_SIZE": change(
        "data.image_size",
        lambda old: old.value if isinstance(old.value, list) else [old.value, old.value],
        "height and width",
    ),
    "FEATURE_DIM": no_effect("of a ResNet that is not there any more"),
    "HIDDEN_DIM": no_effect("the length of a feature is fusion_dim"),
    "DROPOUT_RATE": keep("model.dropout"),
    "FREEZE_BACKBONE": keep("model.freeze_backbone"),
    "NUM_EPOCHS": _EPOCHS,
    "BASE_LEARNING_RATE": _rates,
    "MER_LEARNING_RATE": _RATE_FACTOR,
    "TOKENIZER_LEARNING_RATE": _RATE_FACTOR,
    "FUSION_LEARNING_RATE": _RATE_FACTOR,
    "HEAD_LEARNING_RATE": _RATE_FACTOR,
    "LABEL_SMOOTHING": keep("loss.id.label_smoothing"),
    "LEARNING_RATE": keep("optimizer.lr"),
    "WEIGHT_DECAY": keep("optimizer.weight_decay"),
    "WARMUP_EPOCHS": no_counterpart(
        "schedule.warmup_steps counts steps: these epochs x records / batch / accumulation"
    ),
    "SCHEDULER": in_lower_case("schedule.kind"),
    "CONSERVATIVE_FACTOR": _conservative,
    "ADAPTIVE_GRADIENT_CLIP": _clip_kind,
    "STABILITY_MONITORING": no_counterpart("train.on_nan says what happens then"),
    "CE_WEIGHT": keep("loss.id.weight"),
    "SDM_WEIGHT_WARMUP_EPOCHS": _sdm_start,
    "SDM_WEIGHT_FINAL": keep("loss.sdm.weight"),
    "CONTRASTIVE_WEIGHT": _first_sdm_weight,
    "SDM_TEMPERATURE": _first_sdm_temperature,
    "SDM_INIT_TEMPERATURE": change(
        "loss.sdm.temperature", lambda old: old.value, "fixed; there it moved between 0.15 and 0.5"
    ),
    "FUSION_NUM_HEADS": keep("model.fusion_heads"),
    "RANDOM_FLIP": _ALWAYS,
    "RANDOM_CROP": _ALWAYS,
    "COLOR_JITTER": _ALWAYS,
    "RANDOM_ERASE": keep("data.erase"),
    "MODALITY_DROPOUT": keep("data.modality_dropout"),
    "DEVICE": no_counterpart("a GPU where there is one"),
    "SAVE_DIR": keep("run.work_dir"),
    "LOG_DIR": no_counterpart("everything a run writes is in its folder under run.work_dir"),
    "SAVE_FREQ": _EPOCH_RHYTHM,
    "EVAL_FREQ": _EPOCH_RHYTHM,
    "INFERENCE_BATCH_SIZE": keep("eval.batch_size"),
    "BEST_MODEL_PATH": no_counterpart("checkpoint.best_of keeps the best checkpoint"),
    "NUM_INSTANCES": _RECORDS_PER_ID,
    "NUM_IDS_PER_BATCH": _people,
    "ALLOW_ID_REUSE": no_counterpart(
        "people come again within an epoch where data.epoch_unit is records"
    ),
    "DO_EVAL": no_counterpart("eval.every_steps says when a run is evaluated"),
    "HEAD_LR_WARMUP_EPOCHS": no_counterpart(
        "the classifier's factor in optimizer.lr_multipliers holds from the first step"
    ),
    **dict.fromkeys(
        ("FEATURE_TARGET_NORM", "FEATURE_NORM_BAND", "FEATURE_NORM_PENALTY"), _FEATURE_LENGTH
    ),
    **dict.fromkeys(
        (
            "REQUIRE_MODAL_PAIRS",
            "FORCE_MODAL_PAIRS",
            "MODAL_PAIR_RETRY_LIMIT",
            "MODAL_PAIR_FALLBACK_RATIO",
            "PAIR_COVERAGE_TARGET",
            "PAIR_COVERAGE_WINDOW",
            "SAMPLING_FALLBACK",
        ),
        _PAIRS_NEVER_READ,
    ),
    "SAMPLER_SEED": no_counterpart(
        "run.seed starts the sampler too; batches follow from it and the epoch"
    ),
}
# Of everything that begins so; no setting of ours stands for it.
_CLASS_FAMILIES: Final = ("SDM_", "FUSION_", "MODALITY_", "CONTRASTIVE_", "EVAL_", "MIN_")

_KEYS: Final[dict[str, Judge]] = {
    **_CLASS_KEYS,
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
    "NUM_INSTANCE": _RECORDS_PER_ID,
    "INSTANCES_PER_ID": _RECORDS_PER_ID,
    "ENSURE_RGB": keep("data.ensure_rgb"),
    "PREFER_COMPLETE": change(
        "data.require_pair",
        lambda old: old.value,
        "it was no preference: only people with a pair were taken",
    ),
    "GRADIENT_ACCUMULATION_STEPS": _ACCUMULATION,
    "ACCUMULATION_STEPS": _ACCUMULATION,
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
    "EPOCHS": _EPOCHS,
    "MAX_EPOCHS": _EPOCHS,
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
    last = name.rpartition(".")[2].upper()
    if last.startswith(_CLASS_FAMILIES) and last not in _KEYS:
        return no_counterpart("nothing here stands for it")
    return _KEYS.get(last)


def _missing(values: Mapping[str, Any]) -> tuple[str, ...]:
    last = {name.rpartition(".")[2].upper(): None for name in values}
    lengths = ("EPOCHS", "MAX_EPOCHS", "NUM_EPOCHS")
    batches = ("BATCH_SIZE", "IMS_PER_BATCH", "NUM_IDS_PER_BATCH")
    return lacks({"the length of the run": lengths, "the batch": batches})(last)


def _refusals(values: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        last = name.rpartition(".")[2].upper()
        if last == "CLIP_MODEL_NAME" and not any(part in str(value) for part in _CLIPS):
            found[name] = f"{name} is {value}; built here is CLIP {', '.join(_CLIPS)}"
        if last == "USE_CLIP_BACKBONE" and not is_true(value):
            found[name] = f"{name} is {value}: only CLIP's towers are built"
    return found


REID_GUIDE: Final = Guide(
    name="reid",
    kind="clip_reid",
    find=_find,
    fixed=_FIXED,
    missing=_missing,
    refusals=_refusals,
)
