"""What became of the keys of KAIR's option files (VRT), and of those of its spike relatives.

KAIR counts batch and workers over all GPUs of ``gpu_ids``. Networks other than VRT for deblurring
are refused: super-resolution, denoising, interpolation, RVRT, SwinIR and networks for single
images, and of the relatives with spikes those that fuse by more than further channels.
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
    find_judge,
    had_no_effect,
    has_no_counterpart,
    in_lower_case,
    is_true,
    keep,
    lacks,
    no_counterpart,
    number,
    other_values,
    refused,
    renamed,
    share_of_peak,
)

_TRAIN: Final = "datasets.train"


def _devices(values: Mapping[str, Any]) -> int:
    listed = values.get("gpu_ids")
    return max(1, len(listed)) if isinstance(listed, list) and is_true(values.get("dist")) else 1


def _batch(old: OldKey) -> KeyVerdict:
    total, devices = number(old.value), _devices(old.values)
    if total is None or total < devices:
        return refused(f"{old.value} samples cannot be shared by {devices} GPUs")
    reason = f"of one device: {total:g} over {devices} GPUs, which torchrun starts here"
    return changed("train.batch_size", int(total) // devices, reason)


def _root(old: OldKey) -> KeyVerdict:
    path = PurePosixPath(str(old.value))
    reason = "the folder around both trees; ours reads SPLIT/CLIP/blur and SPLIT/CLIP/sharp below "
    reason += "it, so link the folders in that form"
    if path.suffix == ".lmdb":
        reason += "; LMDB files are not read, their images are"
    return changed("data.root", str(path.parent), reason)


def _flips(old: OldKey) -> KeyVerdict:
    switches = [old.other(f"{_TRAIN}.{name}") for name in ("use_hflip", "use_rot")]
    on = [is_true(switch) for switch in switches]
    reason = "mirroring and turning are one setting"
    if any(on) and not all(on):
        reason += ", and one of the two was off"
    value = "flips" if any(on) else "none"
    return changed("data.augment", value, reason)


def _heads(old: OldKey) -> KeyVerdict:
    heads = old.value if isinstance(old.value, list) else [old.value]
    if len(set(heads)) != 1:
        return refused("ours has one number for all blocks")
    return changed("model.heads", heads[0], "one number for all blocks")


def _recompute(old: OldKey) -> KeyVerdict:
    """Recompute at least what was recomputed there: whole stages, where single ones were left."""
    depths = old.other("netG.depths")
    count = len(depths) if isinstance(depths, list) else 11
    halves = {
        half: set(range(count)) - set(old.other(f"netG.no_checkpoint_{half}_blocks") or [])
        for half in ("attn", "ffn")
        if is_true(old.other(f"netG.use_checkpoint_{half}"))
    }
    touched = set().union(*halves.values())
    value: Any = [f"stage{place + 1}" for place in range(7) if place in touched]
    value += ["stage8"] if any(place >= 7 for place in touched) else []
    if all(len(places) == count for places in halves.values()):
        names = {(): "none", ("attn",): "attention", ("ffn",): "ffn"}
        value = names.get(tuple(halves), "full")
    elif not value:
        value = "none"
    reason = "one setting for the four keys; a stage of which a half was recomputed is recomputed "
    reason += "whole. The original recomputed the second group's attention whatever they said"
    return changed("train.recompute", value, reason)


def _kind(old: OldKey) -> KeyVerdict:
    bins = _spike_channels(old.values)
    if bins == 0:
        return changed("model.kind", "vrt", "VRT on frames alone")
    voxels = "tfp" if _is_tfp(old.values) else "counts"
    reason = f"VRT with {bins} further channels of spikes"
    also = {"model.fusion.kind": "early", "data.voxel_bins": bins, "data.voxels": voxels}
    if voxels == "counts":
        reason += "; there each was divided by its largest count, ours are the counts themselves"
        also["data.log1p"] = False
    return changed("model.kind", "vrt_spike", reason, also=also)


def _spike_channels(values: Mapping[str, Any]) -> int:
    channels = number(values.get("netG.in_chans"))
    return 0 if channels is None else int(channels) - 3


_RECONSTRUCTIONS: Final = tuple(
    f"{_TRAIN}.{name}"
    for name in ("spike.reconstruction.type", "spike_reconstruction.type", "spike_reconstruction")
)


def _is_tfp(values: Mapping[str, Any]) -> bool:
    """Tell whether spikes were averaged around centres; code that knew a reach always did."""
    stated = [values[key] for key in _RECONSTRUCTIONS if values.get(key) is not None]
    return "spikecv_tfp" in stated or any(key.endswith(".tfp_half_win_length") for key in values)


def _flipped_planes(old: OldKey) -> KeyVerdict:
    reason = "rows lie from the bottom up in such files, and are always turned here"
    if not is_true(old.value):
        reason += "; there they stayed upside down beside upright frames"
    return has_no_counterpart(reason)


def _of_spikes(judge: Judge) -> Judge:
    def careful(old: OldKey) -> KeyVerdict:
        if _spike_channels(old.values) == 0:
            return had_no_effect("the network has no channel of spikes")
        return judge(old)

    return careful


def _multipliers(old: OldKey) -> KeyVerdict:
    keys = old.other("train.fix_keys")
    factor, held = number(old.other("train.fix_lr_mul")), number(old.other("train.fix_iter"))
    if not isinstance(keys, list) or not keys or not held or factor in {None, 1.0}:
        return had_no_effect("it counts only beside fix_iter, fix_keys and a factor other than 1")
    value = {str(key): factor for key in keys}
    reason = "a factor on the rate of parameters of these names"
    return changed("optimizer.lr_multipliers", value, reason)


def _schedule(old: OldKey) -> KeyVerdict:
    kind = str(old.value)
    if kind == "CosineAnnealingWarmRestarts":
        periods, total = old.other("train.G_scheduler_periods"), old.other("train.total_iter")
        one = periods[0] if isinstance(periods, list) and len(periods) == 1 else periods
        reason = "one fall from the peak to the end of the run"
        if number(one) != number(total):
            reason += f"; there it started anew every {one} iterations, which is not built"
        return changed("schedule.kind", "cosine", reason)
    if kind == "MultiStepLR":
        return changed("schedule.kind", "step", "lowered at milestones")
    return refused(f"there is no schedule {kind}")


def _end_factor(old: OldKey) -> KeyVerdict:
    lowest, peak = number(old.value), number(old.other("train.G_optimizer_lr"))
    if lowest is None or not peak:
        return refused("it takes G_optimizer_lr to be a share of")
    return share_of_peak(lowest, peak)


def _loss(old: OldKey) -> KeyVerdict:
    if str(old.value) != "charbonnier":
        return refused("of KAIR's losses charbonnier is built")
    return has_no_counterpart("loss.charbonnier is the pixel loss here")


def _ema(old: OldKey) -> KeyVerdict:
    if not number(old.value):
        return had_no_effect("0 keeps no averaged copy")
    return keep("train.ema")(old)


def _clip(old: OldKey) -> KeyVerdict:
    if not number(old.value):
        return had_no_effect("it clips nothing")
    also = {"train.clip.kind": "fixed"}
    return renamed("train.clip.norm", old.value, also=also)


def _precision(old: OldKey) -> KeyVerdict:
    if not is_true(old.value):
        return changed("train.precision", "fp32", "off")
    kinds = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
    value = kinds.get(str(old.other("train.amp.dtype", "float16")))
    return changed("train.precision", value, "the switch and the type are one setting")


def _tile(old: OldKey) -> KeyVerdict:
    if not number(old.value):
        return had_no_effect("0 takes whole frames")
    overlap = number(old.other("val.size_patch_overlapping")) or 20
    reason = f"tiles overlap by {overlap:g} pixels, and the outer half is thrown away"
    also = {"eval.tile_overlap": int(overlap), "data.tiles.border": "discard"}
    return renamed("eval.tile", old.value, reason, also=also)


def _interval(key: str) -> Judge:
    def judge(old: OldKey) -> KeyVerdict:
        if isinstance(old.value, list):
            return refused("ours is one interval, not a list of steps")
        return keep(key)(old)

    return judge


_FLOW_WEIGHTS: Final = no_counterpart(
    "the flow estimator starts from random weights; model.weights takes those of a whole VRT, "
    "estimator included"
)
_DEVICES: Final = no_counterpart("torchrun decides about ranks; the batch is already shared")
_KEYS: Final[dict[str, Judge]] = {
    "task": keep("run.name"),
    "path.root": keep("run.work_dir"),
    "path.pretrained_netG": keep("model.weights"),
    "gpu_ids": _DEVICES,
    "dist": _DEVICES,
    "manual_seed": keep("run.seed"),
    "train.manual_seed": keep("run.seed"),
    f"{_TRAIN}.dataroot_gt": _root,
    f"{_TRAIN}.dataroot_spike": _of_spikes(
        no_counterpart("spikes lie in the folder data.spike_dir of each clip")
    ),
    f"{_TRAIN}.spike_h": _of_spikes(
        keep("data.spike_height", "GoPro's files have 360 x 640; a Vidar camera has 250 x 400")
    ),
    f"{_TRAIN}.spike_w": _of_spikes(keep("data.spike_width")),
    f"{_TRAIN}.tfp_half_win_length": _of_spikes(keep("data.tfp_reach")),
    f"{_TRAIN}.spike_folder_name": _of_spikes(keep("data.spike_dir")),
    f"{_TRAIN}.num_frame": keep("data.clip_len"),
    f"{_TRAIN}.gt_size": keep("data.crop"),
    f"{_TRAIN}.filename_ext": change("data.image_types", lambda old: [old.value], "a list"),
    f"{_TRAIN}.use_hflip": _flips,
    f"{_TRAIN}.use_rot": _flips,
    f"{_TRAIN}.dataloader_batch_size": _batch,
    f"{_TRAIN}.dataloader_num_workers": keep(
        "loader.workers", "a total for the host, shared over its ranks, in both"
    ),
    f"{_TRAIN}.dataloader_prefetch_factor": keep("loader.prefetch"),
    f"{_TRAIN}.dataloader_persistent_workers": keep("loader.persistent"),
    f"{_TRAIN}.dataloader_pin_memory": keep("loader.pin"),
    "netG.net_type": _kind,
    "netG.spynet_path": _FLOW_WEIGHTS,
    "netG.optical_flow.checkpoint": _FLOW_WEIGHTS,
    "netG.window_size": keep("model.window"),
    "netG.depths": keep("model.depths"),
    "netG.indep_reconsts": keep("model.indep_reconsts"),
    "netG.embed_dims": keep("model.embed_dims"),
    "netG.num_heads": _heads,
    "netG.mlp_ratio": keep("model.mlp_ratio"),
    "netG.drop_path_rate": keep("model.drop_path"),
    "netG.pa_frames": keep("model.pa_frames"),
    "netG.deformable_groups": keep("model.deformable_groups"),
    "netG.use_checkpoint_attn": _recompute,
    "netG.use_checkpoint_ffn": _recompute,
    "netG.no_checkpoint_attn_blocks": _recompute,
    "netG.no_checkpoint_ffn_blocks": _recompute,
    "train.G_lossfn_type": _loss,
    "train.G_lossfn_weight": keep("loss.charbonnier.weight"),
    "train.G_charbonnier_eps": keep("loss.charbonnier.eps", "under the root, not squared, in both"),
    "train.E_decay": _ema,
    "train.G_optimizer_type": in_lower_case("optimizer.kind"),
    "train.G_optimizer_lr": keep("optimizer.lr"),
    "train.G_optimizer_betas": keep("optimizer.betas"),
    "train.G_optimizer_wd": keep("optimizer.weight_decay"),
    "train.G_optimizer_clipgrad": _clip,
    "train.fix_keys": _multipliers,
    "train.fix_lr_mul": _multipliers,
    "train.fix_iter": no_counterpart(
        "nothing is held fixed at first. There the run saved one iteration before it and broke off "
        "when the graph changed, to be resumed by hand"
    ),
    "train.total_iter": keep("train.steps"),
    "train.G_scheduler_type": _schedule,
    "train.G_scheduler_periods": no_counterpart("the fall lasts as long as the run"),
    "train.G_scheduler_eta_min": _end_factor,
    "train.G_scheduler_milestones": keep("schedule.milestones"),
    "train.G_scheduler_gamma": keep("schedule.gamma"),
    "train.checkpoint_test": _interval("eval.every_steps"),
    "train.checkpoint_save": _interval("checkpoint.every_steps"),
    "train.checkpoint_print": _interval("log.every_steps"),
    "train.amp.enable": _precision,
    "train.compile.enable": change(
        "train.compile.scope",
        lambda old: "regions" if is_true(old.value) else "off",
        "blocks are compiled one by one",
    ),
    "val.size_patch_testing": _tile,
    f"{_TRAIN}.rgb_normalize": no_counterpart("frames go in as they are, from 0 to 1"),
    f"{_TRAIN}.spike_flipud": _of_spikes(_flipped_planes),
    "logging.use_tensorboard": keep("log.tensorboard"),
}
_FAMILIES: Final[dict[str, Judge]] = {
    "model": no_counterpart("model.kind names the network"),
    "find_unused_parameters": no_counterpart("every weight gets a gradient"),
    "use_static_graph": no_counterpart("nothing here"),
    "scale": no_counterpart("deblurring keeps the size"),
    "n_channels": no_counterpart("frames have three channels"),
    "path": no_counterpart("`pitstop train --resume` goes on from a run of ours"),
    "datasets": no_counterpart("clips are described by data settings, of both splits alike"),
    "netG": no_counterpart("part of what model.kind names"),
    "train": no_counterpart("nothing here stands for it"),
    "val": no_counterpart("evaluation restores clips of data.clip_len frames"),
    "logging": no_counterpart("every run has its record; log.tensorboard adds files"),
    "runtime": no_counterpart("threads are left as torch has them"),
}
_FIXED: Final[dict[str, tuple[Any, str]]] = {
    "train.clip.kind": ("none", "KAIR clips nothing where G_optimizer_clipgrad is not set"),
    "train.precision": ("fp32", "KAIR has no mixed precision where train.amp is not set"),
    "data.augment": ("none", "frames are not mirrored where neither use_hflip nor use_rot is set"),
    "optimizer.weight_decay": (0, "KAIR's default"),
}
_PARTS: Final = {
    "netG": ("netG.depths",),
    "the length of the run": ("train.total_iter",),
    "datasets.train": (f"{_TRAIN}.dataloader_batch_size",),
}
# Keys whose other values are another network or another task.
_BUILT: Final[dict[str, tuple[Any, ...]]] = {
    "netG.net_type": ("vrt",),
    "netG.upscale": (1,),
    "scale": (1,),
    "netG.nonblind_denoising": (False,),
    "netG.dcn_type": ("DCNv2",),
    "netG.use_sgp": (False,),
    "netG.optical_flow.module": ("spynet",),
    "netG.fusion.enable": (False,),
    "netG.spike_encoder.enable": (False,),
    "netG.input_mode": ("concat", "rgb"),
    "netG.input.strategy": ("concat",),
    **dict.fromkeys(_RECONSTRUCTIONS, ("spikecv_tfp", "counts")),
    "train.use_lora": (False,),
    "train.freeze_backbone": (False,),
}
_LIFTED: Final = frozenset({"netG.input_mode"})
_TASKS: Final = {"videofi": "frame interpolation", "videosr": "super-resolution"}


def _refusals(values: Mapping[str, Any]) -> dict[str, str]:
    """Name the networks and tasks that are not built, by the keys that ask for them."""
    found = other_values(values, _BUILT, here="imported here")
    if _spike_channels(values) <= 0:
        found = {key: reason for key, reason in found.items() if key not in _LIFTED}
    operator = values.get("netG.fusion.operator")
    if "netG.fusion.enable" in found and operator is not None:
        found["netG.fusion.enable"] = f"netG.fusion.operator is {operator}; imported here is concat"
    task = next((name for part, name in _TASKS.items() if part in str(values.get("task"))), None)
    if task is not None:
        found.setdefault("task", f"task is {values['task']}: {task} is not imported, deblurring is")
    sigma = [key for key in values if key.startswith(f"{_TRAIN}.sigma")]
    if sigma:
        found.setdefault(sigma[0], f"{sigma[0]} is for denoising, which is not imported")
    return found


def _find(name: str) -> Judge | None:
    return find_judge(name, _KEYS, _FAMILIES)


KAIR_GUIDE: Final = Guide(
    name="KAIR",
    kind="vrt",
    find=_find,
    fixed=_FIXED,
    missing=lacks(_PARTS),
    refusals=_refusals,
)
