"""What became of the keys of the bird's-eye-view guide's configurations (mmcv, Python).

The guide's project has a runner of its own, which acts on few of the keys that mmcv's would.
Files named in ``_base_`` are not read: each is converted by itself.
"""

from typing import Any, Final

from pitstop.config.legacy.python import Code
from pitstop.config.legacy.verdicts import (
    Guide,
    Judge,
    OldKey,
    Status,
    Verdict,
    change,
    keep,
    no_counterpart,
    no_effect,
    number,
)

_NEVER_APPLIED: Final = (
    "had no effect: the original's runner stored lr_config and nothing read it, so the rate stayed "
    "at its peak; here it is applied"
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


def _image_size(old: OldKey) -> Verdict:
    steps = old.value if isinstance(old.value, list) else []
    scales = [step.get("img_scale") for step in steps if _is_dict(step, "Resize")]
    if not scales or not isinstance(scales[0], list) or len(scales[0]) != 2:
        reason = "no step of it says a size; data.image_size does"
        return Verdict(status=Status.NO_COUNTERPART, reason=reason)
    width, height = scales[0]
    reason = f"height first; it was width x height. The other {len(steps) - 1} steps are the "
    reason += "workload's own: decoding at a reduced scale, colours at random (data.photometric), "
    reason += "normalising on the device"
    return Verdict(
        status=Status.CHANGED, key="data.image_size", value=[height, width], reason=reason
    )


def _precision(old: OldKey) -> Verdict:
    reason = "a number is a fixed scale: nothing lowers it after an overflow, and raising it makes "
    reason += "overflow likelier (65,504 / scale is the largest gradient). Ours starts high and "
    reason += "finds its own (train.scaler); bf16 needs none"
    if number(old.value) is None:
        reason = "the scale is dynamic (train.scaler); bf16 needs none"
    return Verdict(status=Status.CHANGED, key="train.precision", value="fp16", reason=reason)


def _policy(old: OldKey) -> Verdict:
    kinds = {"poly": "poly", "cosineannealing": "cosine", "step": "step", "fixed": "constant"}
    kind = kinds.get(str(old.value).lower())
    if kind is None:
        return Verdict(
            status=Status.REFUSED, reason=f"there is no schedule {old.value}; {_NEVER_APPLIED}"
        )
    return Verdict(
        status=Status.CHANGED, key="schedule.kind", value=kind, reason=f"lr_config {_NEVER_APPLIED}"
    )


def _end_factor(old: OldKey) -> Verdict:
    lowest, peak = number(old.value), number(old.other("optimizer.lr", 2e-4))
    if lowest is None or not peak:
        return Verdict(status=Status.REFUSED, reason="it is no number")
    reason = f"a share of the peak, {lowest:g} / {peak:g}; lr_config {_NEVER_APPLIED}"
    return Verdict(
        status=Status.CHANGED,
        key="schedule.end_factor",
        value=float(f"{lowest / peak:.12g}"),
        reason=reason,
    )


def _backbone(old: OldKey) -> Verdict:
    depths = old.value if isinstance(old.value, list) else []
    width = old.other("model.backbone.embed_dims", 96)
    name = _BACKBONES.get((width, tuple(depths)))
    if name is None:
        reason = f"there is no Swin of width {width} and these depths; there is "
        return Verdict(
            status=Status.REFUSED, reason=reason + ", ".join(sorted(_BACKBONES.values()))
        )
    return Verdict(
        status=Status.CHANGED,
        key="model.backbone",
        value=name,
        reason=f"width {width} and these depths have a name",
    )


def _view(old: OldKey) -> Verdict:
    if old.value == "TransformerLiftSplatShoot":
        return Verdict(status=Status.NO_COUNTERPART, reason="model.kind says lift-splat")
    return Verdict(status=Status.REFUSED, reason="of the views from above only lift-splat is built")


def _classes(old: OldKey) -> Verdict:
    if number(old.value) == 14:
        return Verdict(
            status=Status.NO_COUNTERPART, reason="the 14 classes of the benchmark, always"
        )
    return Verdict(status=Status.REFUSED, reason="the benchmark has 14 classes")


def _applied(key: str) -> Judge:
    return change(key, lambda old: old.value, f"lr_config {_NEVER_APPLIED}")


_ROOT: Final = keep("data.root", "the folder of the tables, samples and maps of nuScenes itself")
_KEYS: Final[dict[str, Judge]] = {
    "_base_": no_counterpart(
        "the files it names are not read: convert each by itself, and join what comes out"
    ),
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
    "data.prefetch_factor": no_effect(f"{_TWO_ARGUMENTS}; ours is loader.prefetch"),
    "data.pin_memory": no_effect(f"{_TWO_ARGUMENTS}; pinned memory was on anyway"),
    "data.persistent_workers": no_effect(f"{_TWO_ARGUMENTS}; workers stayed alive anyway"),
    "train_pipeline": _image_size,
    "data.train.pipeline": _image_size,
    "optimizer.type": change("optimizer.kind", lambda old: str(old.value).lower(), "in lower case"),
    "optimizer.lr": keep("optimizer.lr"),
    "optimizer.betas": keep("optimizer.betas"),
    "optimizer.weight_decay": keep("optimizer.weight_decay"),
    "optimizer.momentum": keep("optimizer.momentum"),
    "optimizer_config": change("train.clip.kind", lambda _: "none", "it clips nothing"),
    "optimizer_config.grad_clip.max_norm": keep("train.clip.norm"),
    "optimizer_config.grad_clip.norm_type": no_counterpart("the Euclidean norm, always"),
    "optimizer_config.cumulative_iters": keep(
        "train.accumulate", "train.steps and every interval then count updates, not batches"
    ),
    "runner.max_iters": keep("train.steps"),
    "runner.accumulative_counts": no_effect(
        "the original's runner drops keys it does not know and updates after every batch (mmcv "
        "itself refuses the key); ours is train.accumulate, and it raises no samples/s"
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
    "model.decode_head.num_classes": _classes,
    "model.pretrained": no_counterpart(
        "model.weights is a folder as transformers saves it (config.json, model.safetensors)"
    ),
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
    "model.kind": ("lss_swin_mono", "the guide's network: one camera, 14 classes"),
    "train.batch_size": (4, "the guide's batch"),
    "train.steps": (200000, "the guide's run"),
    "train.clip.norm": (35, "the limit of the guide's larger batches; batch 4 had none"),
    "optimizer.lr": (2e-4, "the guide's rate for batch 4"),
    "optimizer.weight_decay": (0.01, "the guide's optimizer"),
    "schedule.kind": ("poly", "the guide's schedule, which its runner never applied"),
    "schedule.warmup_steps": (1500, "the guide's warm-up, which its runner never applied"),
    "eval.every_steps": (20000, "the guide's interval"),
}


def _find(name: str) -> Judge | None:
    judge = _KEYS.get(name) or _family(name)
    return None if judge is None else _unless_code(judge)


def _family(name: str) -> Judge | None:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        judge = _FAMILIES.get(".".join(parts[:end]))
        if judge is not None:
            return judge
    return None


def _unless_code(judge: Judge) -> Judge:
    def careful(old: OldKey) -> Verdict:
        if isinstance(old.value, Code):
            return Verdict(status=Status.UNKNOWN, reason="it is code, which is never executed")
        return judge(old)

    return careful


BEV_GUIDE: Final = Guide(name="bev", find=_find, fixed=_FIXED)
