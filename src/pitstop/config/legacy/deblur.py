"""What became of every key of the deblurring guides (VRT-Spike, YAML, upper case)."""

import math
from typing import Any, Final

from pitstop.config.legacy.verdicts import (
    Guide,
    Judge,
    KeyVerdict,
    OldKey,
    Status,
    change,
    changed,
    had_no_effect,
    has_no_counterpart,
    in_lower_case,
    is_true,
    keep,
    lacks,
    never_ran,
    no_counterpart,
    no_effect,
    number,
    refused,
    renamed,
)

_NEVER_READ: Final = "train.py never reads it"


def _workers(old: OldKey) -> KeyVerdict:
    text = str(old.value).strip().replace(" ", "")
    if text == "auto" or text.startswith("cpu*"):
        share = 0.8 if text == "auto" else number(text.removeprefix("cpu*"))
        reason = f"{text} was {share} of the cores, divided by the number of GPUs; ours is the "
        reason += "same share of the usable cores, shared over the ranks of a host"
        return changed("loader.workers", share, reason)
    reason = "a total for the host, shared over its ranks, in both"
    return renamed("loader.workers", old.value, reason)


def _cache_budget(old: OldKey) -> KeyVerdict:
    if not is_true(old.other("DATA.USE_RAM_CACHE", "true")):
        return had_no_effect("DATA.USE_RAM_CACHE is off")
    size, workers = number(old.value), number(old.other("DATALOADER.TOTAL_WORKERS"))
    if size and workers:
        sum_of = f"{size:g} GB x {workers:g} workers = {size * workers:g} GB in all"
    else:
        sum_of = "50 GB x 12 workers = 600 GB, for instance"
    reason = f"was held by every worker process by itself ({sum_of}); ours is one budget for all "
    reason += "workers and ranks of a host"
    return changed("cache.budget", f"{old.value}GB", reason)


def _ram_cache(old: OldKey) -> KeyVerdict:
    if is_true(old.value):
        why = "a cache is on where cache.budget is above 0; it takes DATA.CACHE_SIZE_GB"
        return has_no_counterpart(why)
    return changed("cache.budget", "0", "a budget of 0 is no cache")


def _spike_height(old: OldKey) -> KeyVerdict:
    if str(old.value) == "396":
        reason = "the files hold 88 planes of 360 x 640 bits: 88 x 28,800 bytes = 2,534,400, which "
        reason += "is 10 x 396 x 640 by coincidence"
        return changed("data.spike_height", 360, reason)
    return keep("data.spike_height")(old)


def _recompute(old: OldKey) -> Any:
    attention = is_true(old.other("MODEL.VRT.USE_CHECKPOINT_ATTN", "true"))
    ffn = is_true(old.other("MODEL.VRT.USE_CHECKPOINT_FFN", "true"))
    if attention and ffn:
        return "full"
    return "attention" if attention else "ffn" if ffn else "none"


def _channels(old: OldKey) -> KeyVerdict:
    channels = old.value if isinstance(old.value, list) else [old.value]
    if len(set(channels)) == 1:
        return renamed("model.spike.channels", channels[0], "one number for all scales")
    return refused("ours has one number for all scales")


def _max_tokens(group: str) -> Judge:
    def judge(old: OldKey) -> KeyVerdict:
        limit = number(old.value) or 49152.0
        side = number(old.other(f"MODEL.{group}.CHUNK_SIZE")) or 64.0
        batch = number(old.other("TRAIN.BATCH_SIZE")) or 1.0
        most = limit // (side * side)
        if batch <= most:
            reason = (
                f"CHUNK_SIZE {side:g} binds first: {side:g} x {side:g} = {side * side:g} pixels "
            )
            reason += (
                f"of {limit:g}, so it cannot matter up to batch {most:g}; the batch is {batch:g}"
            )
            return had_no_effect(reason)
        reason = f"at batch {batch:g} it bound before CHUNK_SIZE {side:g}: a square of "
        reason += f"{limit:g} / {batch:g} pixels"
        key = f"model.{'spike' if group == 'SPIKE_TSA' else 'fusion'}.chunk"
        return changed(key, math.isqrt(int(limit // batch)), reason)

    return judge


def _chunk(key: str, group: str) -> Judge:
    def judge(old: OldKey) -> KeyVerdict:
        if (
            _max_tokens(group)(
                OldKey(
                    name=old.name,
                    value=old.other(f"MODEL.{group}.MAX_BATCH_TOKENS", 49152),
                    values=old.values,
                )
            ).status
            is Status.CHANGED
        ):
            return had_no_effect("MAX_BATCH_TOKENS bound before it")
        reason = "kept; whole images (null) are as good, since the scores of 256 x 256 pixels and "
        reason += "5 frames take 65,536 x 4 x 25 x 4 bytes = 26 MB"
        return renamed(key, old.value, reason)

    return judge


def _attention_keys(old_group: str, new_group: str) -> dict[str, Judge]:
    old, new = f"MODEL.{old_group}", f"model.{new_group}"
    return {
        f"{old}.HEADS": keep(f"{new}.heads"),
        f"{old}.DROPOUT": keep(f"{new}.dropout"),
        f"{old}.MLP_RATIO": keep(f"{new}.mlp_ratio"),
        f"{old}.ADAPTIVE_CHUNK": no_counterpart(f"{new}.chunk is the side of a square, or null"),
        f"{old}.MAX_BATCH_TOKENS": _max_tokens(old_group),
        f"{old}.CHUNK_SIZE": _chunk(f"{new}.chunk", old_group),
        f"{old}.CHUNK_SHAPE": no_counterpart(f"{new}.chunk is a square"),
    }


def _clip(old: OldKey) -> KeyVerdict:
    limit = number(old.value)
    if limit is not None and limit <= 0:
        return changed("train.clip.kind", "none", "a limit of 0 or less is no clipping")
    return keep("train.clip.norm")(old)


def _optimizer(old: OldKey) -> KeyVerdict:
    kinds = {"adamw": "adamw", "adam": "adam", "adamw8bit": "adamw8bit", "sgd": "sgd"}
    kind = kinds.get(str(old.value).lower().replace("_", ""), str(old.value))
    if kind != "adamw8bit":
        return renamed("optimizer.kind", kind)
    reason = "kept, but it saves at most 142 MB: 23.68 M parameters x 8 bytes = 189 MB of state, "
    reason += "not the 12 GB the guide budgets"
    return renamed("optimizer.kind", kind, reason)


def _charbonnier(old: OldKey) -> KeyVerdict:
    delta = number(old.value)
    if delta is None:
        return keep("loss.charbonnier.eps")(old)
    reason = "the original squares it: sqrt(d^2 + delta^2); ours is the number under the root, "
    reason += f"{delta:g} x {delta:g} = {delta * delta:g}"
    return changed("loss.charbonnier.eps", f"{delta * delta:g}", reason)


def _wanted_depths(old: OldKey) -> KeyVerdict:
    """Give the list for the network that was run: seven stages and six groups of stage 8."""
    given = old.value if isinstance(old.value, list) else []
    depths = [number(depth) for depth in given]
    if [*depths] == [8, 8, 8, 8, 4, 4, 4, 4]:
        reason = "half the blocks of stage 8 and no other change, which is what was asked for"
        wanted = [8] * 7 + [2] * 6
    elif len(depths) == 13:
        reason, wanted = "", given
    else:
        return refused(f"{len(depths)} entries do not fit the 13 of model.embed_dims")
    return changed("model.depths", wanted, reason)


def _wanted_window(old: OldKey) -> KeyVerdict:
    given = old.value if isinstance(old.value, list) else [5, old.value, old.value]
    return changed("model.window", given, "frames, rows, columns")


def _total_steps(old: OldKey) -> KeyVerdict:
    if old.other("TRAIN.EPOCHS") is not None:
        return had_no_effect("read only where there is no TRAIN.EPOCHS, and there is one")
    return keep("train.steps", "counted in optimizer steps")(old)


def _old_loader(key: str) -> Judge:
    """Judge a key that the code read only where there was no group DATALOADER."""

    def judge(old: OldKey) -> KeyVerdict:
        if any(name.startswith("DATALOADER.") for name in old.values):
            reason = "read only where there is no group DATALOADER, and there is one"
            return had_no_effect(reason, wanted=keep(key)(old))
        return keep(key, "taken as the number for the host" if "workers" in key else "")(old)

    return judge


_AS_THE_CODE_HAD_IT: Final = (
    "Recomputation stays as the code had it in both columns: without it a batch of 1 takes more "
    "than 48 GB at this crop. train.recompute decides"
)
_TIMING: Final = no_counterpart("every run is timed, as a tree, with nothing counted twice")
_EVAL_COMMAND: Final = "`pitstop eval` takes it from the same settings as evaluation in training"

_KEYS: Final[dict[str, Judge]] = {
    "SEED": keep("run.seed"),
    "DATA.ROOT": keep("data.root"),
    "DATA.TRAIN_SPLIT": keep("data.split"),
    "DATA.VAL_SPLIT": keep("data.eval_split"),
    "DATA.CROP_SIZE": keep("data.crop"),
    "DATA.VAL_CROP_SIZE": keep(
        "data.eval_crop", "published numbers are of whole frames: leave it out to compare"
    ),
    "DATA.CLIP_LEN": keep("data.clip_len"),
    "DATA.K": keep("data.voxel_bins"),
    "DATA.NUM_VOXEL_BINS": keep("data.voxel_bins"),
    "DATA.VOXEL_CACHE_DIRNAME": keep("data.voxel_dir"),
    "DATA.SPIKE_DIR": keep("data.spike_dir"),
    "DATA.USE_PRECOMPUTED_VOXELS": change(
        "data.spikes",
        lambda old: "precomputed" if is_true(old.value) else "live",
        "a choice of two instead of a switch; live reads 2.5 MB a frame and bins it, against "
        "118 MB of precomputed float32",
    ),
    "DATA.USE_RAM_CACHE": _ram_cache,
    "DATA.CACHE_SIZE_GB": _cache_budget,
    "DATA.IMAGE_EXTS": change(
        "data.image_types",
        lambda old: [
            str(ending).lstrip(".").lower()
            for ending in (old.value if isinstance(old.value, list) else [old.value])
        ],
        "written without the point",
    ),
    "DATA.ALIGN_LOG_PATHS": no_counterpart("nothing here stands for it"),
    "DATA.NORM.MEAN": no_effect(_NEVER_READ),
    "DATA.NORM.STD": no_effect(_NEVER_READ),
    "DATA.TRAIN_CROP_SIZE": never_ran(
        keep("data.crop"), f"{_NEVER_READ}; the crop is DATA.CROP_SIZE"
    ),
    "DATA.PREPROCESSING.AUTO_PREPARE": no_counterpart(
        "nothing has to be prepared; `pitstop data pack` is there for those who want to"
    ),
    "DATA.PREPROCESSING.DATASET_TYPE": no_counterpart("the folders are described by data settings"),
    "DATA.PREPROCESSING.FORCE_RECOMPUTE": no_counterpart("nothing is prepared behind your back"),
    "DATA.PREPROCESSING.VOXEL.NUM_BINS": keep("data.voxel_bins"),
    "DATA.PREPROCESSING.VOXEL.APPLY_LOG1P": change(
        "data.log1p",
        lambda old: old.value,
        "kept, of counts of single bits; the original took whole bytes for counts",
    ),
    "DATA.PREPROCESSING.VOXEL.CACHE_DIRNAME": keep("data.voxel_dir"),
    "DATA.PREPROCESSING.X4K.FPS": no_counterpart("there are no settings for X4K clips"),
    "DATA.PREPROCESSING.X4K.EXPOSURE_FRAMES": no_counterpart("there are no settings for X4K clips"),
    "DATA.PREPROCESSING.GOPRO.SPIKE_TEMPORAL_FRAMES": no_counterpart(
        "the number of planes follows from the size of the file: 56, 88 or 104, at the end of a "
        "clip 49, 81 or 97; never 10"
    ),
    "DATA.PREPROCESSING.GOPRO.SPIKE_HEIGHT": _spike_height,
    "DATA.PREPROCESSING.GOPRO.SPIKE_WIDTH": keep("data.spike_width"),
    "DATASET.CACHE_SIZE_GB": never_ran(
        change("cache.budget", lambda old: f"{old.value}GB", "one budget for a host"),
        f"{_NEVER_READ}; the cache is DATA.CACHE_SIZE_GB",
    ),
    "MODEL.USE_SPIKE": change(
        "model.kind",
        lambda old: "vrt_spike" if is_true(old.value) else "vrt",
        "the kind of the model says whether it sees spikes",
    ),
    "MODEL.VRT_CFG": no_effect(
        "names a file that VRT does not have; loading it fails and the class's defaults are used"
    ),
    "MODEL.VRT_DEPTHS": never_ran(
        _wanted_depths,
        f"{_NEVER_READ}; and eight entries would not halve stage 8 but cut it from 6 x 4 = 24 "
        "blocks to 4, as stage 8 is every entry from the eighth on",
    ),
    "MODEL.WINDOW_SIZE": never_ran(
        _wanted_window,
        f"{_NEVER_READ}; and windows of 6 or 7 do not divide 256, 128, 64 and 32, so the image "
        "would be padded",
    ),
    "MODEL.CHANNELS_PER_SCALE": _channels,
    "MODEL.LAYERS": no_effect(_NEVER_READ),
    "MODEL.VRT.USE_CHECKPOINT_ATTN": change(
        "train.recompute",
        _recompute,
        "one setting for both switches; the original recomputed the attention of the second group "
        "of every stage whatever the switch said",
    ),
    "MODEL.VRT.USE_CHECKPOINT_FFN": change(
        "train.recompute", _recompute, "one setting for both switches"
    ),
    "MODEL.VRT.use_checkpoint_attn": no_effect(
        f"{_NEVER_READ} in lower case; the switch is USE_CHECKPOINT_ATTN. {_AS_THE_CODE_HAD_IT}"
    ),
    "MODEL.VRT.use_checkpoint_ffn": no_effect(
        f"{_NEVER_READ} in lower case; the switch is USE_CHECKPOINT_FFN. {_AS_THE_CODE_HAD_IT}"
    ),
    "MODEL.SPIKE_ENCODER.TEMPORAL_STRIDES": keep("model.spike.temporal_strides"),
    "MODEL.SPIKE_ENCODER.SPATIAL_STRIDES": keep("model.spike.spatial_strides"),
    **_attention_keys("SPIKE_TSA", "spike"),
    "MODEL.FUSE.TYPE": no_effect(f"{_NEVER_READ}; the fusion is always the temporal one"),
    **_attention_keys("FUSE", "fusion"),
    "DATALOADER.TOTAL_WORKERS": _workers,
    "DATALOADER.TRAIN_WORKERS": keep("loader.workers", "taken as the number for the host"),
    "DATALOADER.VAL_WORKERS": keep("loader.eval_workers", "taken as the number for the host"),
    "DATALOADER.TRAIN_PREFETCH_FACTOR": keep("loader.prefetch"),
    "DATALOADER.VAL_PREFETCH_FACTOR": keep("loader.eval_prefetch"),
    "DATALOADER.PIN_MEMORY": keep("loader.pin"),
    "DATALOADER.PERSISTENT_WORKERS": keep(
        "loader.persistent",
        "off, it emptied every worker's cache at each epoch; our cache is outside the workers",
    ),
    "DATALOADER.DROP_LAST": never_ran(
        keep("loader.drop_last"), f"{_NEVER_READ}; ours is loader.drop_last, on by default"
    ),
    "TRAIN.NUM_WORKERS": _old_loader("loader.workers"),
    "TRAIN.VAL_NUM_WORKERS": _old_loader("loader.eval_workers"),
    "TRAIN.PREFETCH_FACTOR": _old_loader("loader.prefetch"),
    "TRAIN.VAL_PREFETCH_FACTOR": _old_loader("loader.eval_prefetch"),
    "TRAIN.RESUME_FROM_CHECKPOINT": no_counterpart(
        "say it when starting: `pitstop train --resume`"
    ),
    "TRAIN.CHECKPOINT_PATH": no_counterpart("say it when starting: `pitstop train --resume PATH`"),
    "TRAIN.EXP_DIR": keep("run.work_dir"),
    "TRAIN.EPOCHS": keep("train.epochs"),
    "TRAIN.TOTAL_STEPS": _total_steps,
    "TRAIN.BATCH_SIZE": keep("train.batch_size"),
    "TRAIN.VAL_BATCH_SIZE": keep("eval.batch_size"),
    "TRAIN.COMPILE_MODEL": change(
        "train.compile.scope",
        lambda old: "regions" if is_true(old.value) else "off",
        "blocks are compiled one by one; the original replaced a method of the model at every "
        "forward, which defeats compiling it whole",
    ),
    "TRAIN.GRADIENT_ACCUMULATION_STEPS": keep("train.accumulate"),
    "TRAIN.MAX_GRAD_NORM": _clip,
    "TRAIN.AMP_ENABLED": never_ran(
        change(
            "train.precision",
            lambda old: "fp16" if is_true(old.value) else "fp32",
            "mixed precision on or off; bf16 would need no loss scale",
        ),
        f"{_NEVER_READ}; mixed precision is on wherever there is a GPU",
    ),
    "TRAIN.AMP_OPT_LEVEL": no_effect(
        f"{_NEVER_READ}; O1 and O2 are words of NVIDIA Apex and mean nothing to torch.amp"
    ),
    "TRAIN.OPTIM.TYPE": _optimizer,
    "TRAIN.OPTIM.LR": keep("optimizer.lr"),
    "TRAIN.OPTIM.BETAS": keep("optimizer.betas"),
    "TRAIN.OPTIM.WEIGHT_DECAY": keep("optimizer.weight_decay"),
    "TRAIN.SCHED.TYPE": never_ran(
        in_lower_case("schedule.kind"),
        f"{_NEVER_READ}; the schedule is always warm-up, then cosine",
    ),
    "TRAIN.SCHED.WARMUP_STEPS": keep("schedule.warmup_steps"),
    "LOSS.CHARBONNIER.DELTA": _charbonnier,
    "LOSS.CHARBONNIER.WEIGHT": never_ran(
        keep("loss.charbonnier.weight"), f"{_NEVER_READ}; the weight is always 1"
    ),
    "LOSS.VGG_PERCEPTUAL.LAYERS": keep("loss.perceptual.layers"),
    "LOSS.VGG_PERCEPTUAL.WEIGHT": change(
        "loss.perceptual.weight",
        lambda old: old.value,
        "same number, stronger term: the original normalised with a standard deviation of about "
        "0.225 where its weights expect 1/255, so VGG saw inputs 57 times too small",
    ),
    "LOG.TENSORBOARD": keep("log.tensorboard"),
    "LOG.SAVE_DIR": no_counterpart("everything a run writes is in its folder under run.work_dir"),
    "LOG.VAL_EVERY_STEPS": keep("eval.every_steps"),
    "LOG.PROGRESS_EVERY_STEPS": keep("log.progress_every_steps"),
    "LOG.CHECKPOINT_SAVE_EVERY_EPOCH": no_counterpart(
        "ours is counted in steps: an epoch of 2,015 clips on 3 GPUs with accumulation 6 has "
        "floor(floor(2015 / 3) / 6) = 111; set checkpoint.every_steps"
    ),
    "LOG.CHECKPOINT_KEEP_LAST_N": keep("checkpoint.keep_last"),
    "LOG.ENABLE_TIMING_LOG": _TIMING,
    "LOG.TIMING_CONSOLE": _TIMING,
    "LOG.TIMING_FILE": _TIMING,
    "LOG.TIMING_CONSOLE_INTERVAL": _TIMING,
    "LOG.TIMING_FILE_INTERVAL": _TIMING,
    "TEST.BATCH_SIZE": no_counterpart(f"{_EVAL_COMMAND}: eval.batch_size"),
    "TEST.NUM_WORKERS": no_counterpart(f"{_EVAL_COMMAND}: loader.eval_workers"),
    "TEST.CHECKPOINT_PATH": no_counterpart(
        "say it when starting: `pitstop eval --checkpoint PATH`"
    ),
}

_WANDB: Final = no_counterpart("only TensorBoard files are written, with log.tensorboard")

_VRT_DEFAULTS: Final = "VRT's class default, as MODEL.VRT_CFG was never loaded"
_DEFAULT: Final = "the original's default"

_FIXED: Final[dict[str, tuple[Any, str]]] = {
    "model.kind": ("vrt_spike", "the guides' model"),
    "model.depths": ([8] * 7 + [4] * 6, _VRT_DEFAULTS),
    "model.embed_dims": ([96] * 13, "fixed in the original"),
    "model.indep_reconsts": ([11, 12], _VRT_DEFAULTS),
    "model.window": ([5, 8, 8], "fixed in the original"),
    "data.clip_len": (5, _DEFAULT),
    "data.augment": ("none", "the original only crops"),
    "train.epochs": (80, "8,880 steps of the guide's run / 111 steps an epoch = 80"),
    "train.precision": ("fp16", "mixed precision was always on, in fp16 with a dynamic scale"),
    "optimizer.lr": (1e-4, _DEFAULT),
    "optimizer.betas": ([0.9, 0.99], _DEFAULT),
    "optimizer.weight_decay": (1e-4, _DEFAULT),
    "schedule.kind": ("cosine", "fixed in the original"),
    "schedule.warmup_start": (1e-3, "fixed in the original"),
    "loss.charbonnier.eps": (1e-6, "the original's delta of 0.001, squared"),
    "loss.perceptual.weight": (0.1, _DEFAULT),
    "train.recompute": ("full", "the original's default: both switches on"),
}


_PARTS: Final = {
    "the length of the run": ("TRAIN.EPOCHS", "TRAIN.TOTAL_STEPS"),
    "DATA": ("DATA",),
    "MODEL": ("MODEL",),
}


def _find(name: str) -> Judge | None:
    return _WANDB if name.startswith("LOG.WANDB") else _KEYS.get(name)


DEBLUR_GUIDE: Final = Guide(
    name="deblur",
    kind="vrt_spike",
    find=_find,
    fixed=_FIXED,
    missing=lacks(_PARTS),
)
