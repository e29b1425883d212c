"""What became of the keys of the bird's-eye-view guide's configurations (mmcv, Python).

The guide's project has a runner of its own, which acts on few of the keys that mmcv's would: what
it did and what was wanted from it are told apart.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pitstop.config.legacy.python import Code
from pitstop.config.legacy.verdicts import (
    Guide,
    Judge,
    KeyVerdict,
    OldKey,
    Status,
    change,
    changed,
    find_judge,
    had_no_effect,
    has_no_counterpart,
    in_lower_case,
    keep,
    lacks,
    never_ran,
    no_counterpart,
    no_effect,
    number,
    other_values,
    refused,
    renamed,
    share_of_peak,
)

_NEVER_APPLIED: Final = (
    "had no effect: the original's runner stored lr_config and nothing read it, so the rate stayed "
    "at its peak"
)
_TWO_ARGUMENTS: Final = (
    "the original hands samples_per_gpu and workers_per_gpu to its loader and drops the rest"
)
_BACKBONES: Final = {
    (96, (2, 2, 6, 2)): "swin_t",
    (96, (2, 2, 18, 2)): "swin_s",
    (128, (2, 2, 18, 2)): "swin_b",
}


def _is_dict(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.get("type") == kind


def _image_size(old: OldKey) -> KeyVerdict:
    steps = old.value if isinstance(old.value, list) else []
    scales = [step.get("img_scale") for step in steps if _is_dict(step, "Resize")]
    if not scales or not isinstance(scales[0], list) or len(scales[0]) != 2:
        return has_no_counterpart("no step of it says a size; data.image_size does")
    width, height = scales[0]
    reason = f"height first; it was width x height. The other {len(steps) - 1} steps are the "
    reason += "workload's own: decoding at a reduced scale, colours at random (data.photometric), "
    reason += "normalising on the device"
    colours = any(_is_dict(step, "PhotoMetricDistortion") for step in steps)
    return changed(
        "data.image_size",
        [height, width],
        reason,
        also={} if colours else {"data.photometric": False},
    )


def _precision(old: OldKey) -> KeyVerdict:
    reason = "a number is a fixed scale: nothing lowers it after an overflow, and raising it makes "
    reason += "overflow likelier (65,504 / scale is the largest gradient). Ours starts high and "
    reason += "finds its own (train.scaler); bf16 needs none"
    scale = number(old.value)
    if scale is None:
        reason = "the scale is dynamic (train.scaler); bf16 needs none"
    return changed("train.precision", "fp16", reason)


def _policy(old: OldKey) -> KeyVerdict:
    kinds = {"poly": "poly", "cosineannealing": "cosine", "step": "step", "fixed": "constant"}
    kind = kinds.get(str(old.value).lower())
    if kind is None:
        return refused(f"there is no schedule {old.value}; {_NEVER_APPLIED}")
    ran = changed("schedule.kind", "constant", f"lr_config {_NEVER_APPLIED}")
    return replace(ran, wanted=changed("schedule.kind", kind))


def _end_factor(old: OldKey) -> KeyVerdict:
    if str(old.other("lr_config.policy", "poly")).lower() not in {"poly", "cosineannealing"}:
        return had_no_effect("only poly and cosine come to an end")
    return never_ran(_share_of_peak, f"lr_config {_NEVER_APPLIED}")(old)


def _share_of_peak(old: OldKey) -> KeyVerdict:
    lowest, peak = number(old.value), number(old.other("optimizer.lr", 2e-4))
    if lowest is None or not peak:
        return refused("it is no number")
    return share_of_peak(lowest, peak)


def _backbone(old: OldKey) -> KeyVerdict:
    depths = old.value if isinstance(old.value, list) else []
    width = old.other("model.backbone.embed_dims", 96)
    return changed(
        "model.backbone",
        _BACKBONES.get((width, tuple(depths))),
        f"width {width} and these depths have a name",
    )


def _view(_: OldKey) -> KeyVerdict:
    return changed("model.kind", "lss_swin_mono", "lift-splat from one camera, in this code base")


def _clip(old: OldKey) -> KeyVerdict:
    reason = "a limit on the norm of all gradients, in both"
    kind = {"train.clip.kind": "fixed"}
    return renamed("train.clip.norm", old.value, reason, also=kind)


_EVERY_BATCH: Final = (
    "the original's runner drops keys it does not know and updates after every batch"
)


def _applied(key: str) -> Judge:
    return never_ran(keep(key), f"lr_config {_NEVER_APPLIED}")


_NO_CLIPPING: Final = change("train.clip.kind", lambda _: "none", "it clips nothing")
_ROOT: Final = keep("data.root", "the folder of the tables, samples and maps of nuScenes itself")
_KEYS: Final[dict[str, Judge]] = {
    "seed": keep("run.seed"),
    "work_dir": keep("run.work_dir"),
    "data_root": _ROOT,
    "data.train.data_root": _ROOT,
    "data.val.data_root": _ROOT,
    "data.test.data_root": _ROOT,
    "data.samples_per_gpu": keep("train.batch_size", "of one device, in both"),
    "data.workers_per_gpu": keep(
        "loader.workers", "was for each GPU; ours is for the host, shared over its ranks"
    ),
    "data.prefetch_factor": never_ran(
        keep("loader.prefetch"), f"{_TWO_ARGUMENTS}; torch's own default is 2"
    ),
    "data.pin_memory": never_ran(
        keep("loader.pin"), f"{_TWO_ARGUMENTS}; pinned memory was on anyway"
    ),
    "data.persistent_workers": never_ran(
        keep("loader.persistent"), f"{_TWO_ARGUMENTS}; workers stayed alive anyway"
    ),
    "data.train.times": no_counterpart(
        "how often an epoch goes through the data; a run is counted in steps"
    ),
    "train_pipeline": _image_size,
    "data.train.pipeline": _image_size,
    "optimizer.type": in_lower_case("optimizer.kind"),
    "optimizer.lr": keep("optimizer.lr"),
    "optimizer.betas": keep("optimizer.betas"),
    "optimizer.weight_decay": keep("optimizer.weight_decay"),
    "optimizer.momentum": keep("optimizer.momentum"),
    "optimizer_config": _NO_CLIPPING,
    "optimizer_config.grad_clip": _NO_CLIPPING,
    "optimizer_config.grad_clip.max_norm": _clip,
    "optimizer_config.grad_clip.norm_type": no_counterpart("the Euclidean norm, always"),
    "optimizer_config.type": no_counterpart("what it does is said by its other keys"),
    "optimizer_config.cumulative_iters": never_ran(
        keep("train.accumulate", "train.steps and every interval then count updates, not batches"),
        _EVERY_BATCH,
    ),
    "runner.max_iters": keep("train.steps"),
    "runner.accumulative_counts": never_ran(
        keep("train.accumulate", "it raises no samples/s, and train.steps then counts updates"),
        f"{_EVERY_BATCH} (mmcv itself refuses the key)",
    ),
    "lr_config.policy": _policy,
    "lr_config.power": _applied("schedule.power"),
    "lr_config.min_lr": _end_factor,
    "lr_config.warmup_iters": _applied("schedule.warmup_steps"),
    "lr_config.warmup_ratio": _applied("schedule.warmup_start"),
    "fp16.loss_scale": _precision,
    "evaluation.interval": keep("eval.every_steps", "in optimizer steps"),
    "evaluation.save_best": change(
        "checkpoint.best_of",
        lambda _: "miou_at_050",
        "theirs took the largest of 14 classes that do not exclude each other, on the grid of the "
        "camera image; ours cuts each class at 0.5 where the camera sees",
    ),
    "evaluation.efficient_test": no_effect(
        "mmseg ignores it since 0.17, and it contradicts pre_eval; cells are counted as batches "
        "come, in constant memory"
    ),
    "evaluation.pre_eval": no_effect(
        "the original's hook does not know it any more; cells are counted as batches come"
    ),
    "checkpoint_config.interval": keep("checkpoint.every_steps", "in optimizer steps"),
    "checkpoint_config.max_keep_ckpts": keep("checkpoint.keep_last"),
    "log_config.interval": keep("log.every_steps"),
    "model.backbone.depths": _backbone,
    "model.backbone.out_indices": keep("model.out_stages"),
    "model.backbone.drop_path_rate": keep("model.drop_path"),
    "model.transformer.type": _view,
    "model.transformer.bev_feature_channels": keep("model.channels"),
    "model.transformer.grid_conf.dbound": keep("model.depth"),
    "model.transformer.grid_conf.xbound": keep("model.x_bound"),
    "model.transformer.grid_conf.zbound": keep("model.forward_bound", "z is forward in a camera"),
    "model.transformer.grid_conf.ybound": keep("model.height_bound", "y is down in a camera"),
    "model.decode_head.num_classes": no_counterpart("the 14 classes of the benchmark, always"),
    "model.pretrained": keep("model.weights"),
}

# Judges of everything that begins so; of several the longest counts.
_FAMILIES: Final[dict[str, Judge]] = {
    "bf16": change(
        "train.precision", lambda _: "bf16", "no loss scale, and no check of every gradient"
    ),
    "data": no_counterpart(
        "images are found through the tables of nuScenes, labels through "
        "data.labels or made of boxes, map and lidar points"
    ),
    "dataset_type": no_counterpart("model.kind decides the data"),
    "img_norm_cfg": no_counterpart("images are normalised on the device, by ImageNet's levels"),
    "norm_cfg": no_counterpart("part of what model.kind names"),
    "test_pipeline": no_counterpart("evaluation sees whole images of data.image_size"),
    "optimizer.paramwise_cfg": no_counterpart("optimizer.lr_multipliers has factors on the rate"),
    "lr_config": no_counterpart("warm-up is linear, and all is counted in optimizer steps"),
    "runner": no_counterpart("a run is as long as train.steps or train.epochs"),
    "evaluation": no_counterpart("overlaps by class, at 0.5 and at the best threshold"),
    "checkpoint_config": no_counterpart("intervals are counted in optimizer steps"),
    "log_config": no_counterpart("every run has its record; log.tensorboard adds files"),
    "model.backbone": no_counterpart("part of what model.backbone names"),
    "model": no_counterpart("part of what model.kind names"),
    "backbone_norm_cfg": no_counterpart("part of what model.backbone names"),
    "dist_params": no_counterpart("torchrun decides about ranks"),
    "log_level": no_counterpart("nothing here"),
    "load_from": no_counterpart("`pitstop train --resume` goes on from a run of ours"),
    "resume_from": no_counterpart("`pitstop train --resume` goes on from a run of ours"),
    "workflow": no_counterpart("training, with evaluations every eval.every_steps"),
    "cudnn_benchmark": no_counterpart("nothing here"),
    "find_unused_parameters": no_counterpart("every weight gets a gradient"),
}

_FIXED: Final[dict[str, tuple[Any, str]]] = {
    "train.clip.kind": ("none", "the runner clips nothing where grad_clip is not set"),
    "train.precision": ("fp32", "mixed precision is off where neither fp16 nor bf16 is set"),
    "schedule.kind": ("constant", "there is no schedule where lr_config is not set"),
}

_PARTS: Final = {
    "the model": ("model.transformer.type",),
    "the length of the run": ("runner.max_iters",),
    "the batch": ("data.samples_per_gpu",),
    "the optimizer": ("optimizer.lr",),
}
# What is built, by key; anything else under these keys is another network or other data.
_BUILT: Final[dict[str, tuple[Any, ...]]] = {
    "model.type": ("BEVSegmentor",),
    "model.backbone.type": ("SwinTransformer",),
    "model.backbone.window_size": (7,),
    "model.backbone.patch_size": (4,),
    "model.backbone.mlp_ratio": (4,),
    "model.backbone.use_abs_pos_embed": (False,),
    "model.transformer.type": ("TransformerLiftSplatShoot",),
    "model.transformer.use_high_res": (False,),
    "model.transformer.depthsup": (False,),
    "model.transformer.downsample": (32,),
    "model.decode_head.type": ("PyramidHead",),
    "model.decode_head.num_classes": (14,),
    "dataset_type": ("NuscenesDataset",),
}
_DATASET: Final = "NuscenesDataset"
# Nothing but another length of an epoch, and a run is counted in steps.
_REPEATED: Final = "RepeatDataset"
_INNER: Final = re.compile(r"data\.train(\.dataset)+(?=\.)")
_STRANGERS: Final = ("model.auxiliary_head", "model.neck", "model.diffusion")


def _refusals(values: Mapping[str, Any]) -> dict[str, str]:
    """Name the networks and data that are not built, by the keys that ask for them."""
    found = other_values(values, _BUILT, here="built here") | _other_data(values)
    for key, value in values.items():
        if key.startswith(_STRANGERS) and value is not None:
            found.setdefault(
                ".".join(key.split(".")[:2]), f"{key} is {value}; there is no such part"
            )
        elif key.startswith("model.") and "diffusion" in str(value).lower():
            found.setdefault(key, f"{key} is {value}; diffusion is not built")
    depths, width = values.get("model.backbone.depths"), values.get("model.backbone.embed_dims", 96)
    if isinstance(depths, list) and (width, tuple(depths)) not in _BACKBONES:
        names = ", ".join(sorted(_BACKBONES.values()))
        reason = f"there is no Swin of width {width} and depths {depths}; there is {names}"
        found.setdefault("model.backbone.depths", reason)
    return found


def _other_data(values: Mapping[str, Any]) -> dict[str, str]:
    """Name the datasets that are not read, inside of those that only repeat them too."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if _INNER.sub("data.train", key) != "data.train.type" or value in {_DATASET, None}:
            continue
        if value != _REPEATED:
            reason = f"{key} is {value}; built here is {_DATASET}"
            parts = values.get(f"{key.removesuffix('.type')}.datasets")
            if value == "ConcatDataset" and isinstance(parts, list):
                reason += f": name one of the {len(parts)} joined datasets in its place"
            found[key] = reason
        elif f"{key.removesuffix('type')}dataset.type" not in values:
            found[key] = f"{key} is {value}, and what it repeats is not there"
    return found


def _find(name: str) -> Judge | None:
    judge = find_judge(_INNER.sub("data.train", name), _KEYS, _FAMILIES)
    return None if judge is None else _unless_code(judge)


def _unless_code(judge: Judge) -> Judge:
    def careful(old: OldKey) -> KeyVerdict:
        if isinstance(old.value, Code):
            return KeyVerdict(status=Status.UNKNOWN, reason="it is code, which is never executed")
        return judge(old)

    return careful


BEV_GUIDE: Final = Guide(
    name="bev",
    kind="lss_swin_mono",
    find=_find,
    fixed=_FIXED,
    missing=lacks(_PARTS),
    refusals=_refusals,
)
