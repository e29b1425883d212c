"""Datasets without a configuration: which workload they are for, checked, packed, looked at."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.data.check import DataCheck
from pitstop.data.pack import Frames, Pack, PackSummary, beside, is_pack
from pitstop.errors import ConfigError, DataError
from pitstop.train.task import Task
from pitstop.workloads.bev.data.checking import check_world, is_world
from pitstop.workloads.bev.data.packing import pack_world
from pitstop.workloads.bev.data.tables import versions_in
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.data.packing import check_clips, clip_splits, pack_clips
from pitstop.workloads.reid.data.checking import check_people, is_people
from pitstop.workloads.reid.data.decode import packed_size
from pitstop.workloads.reid.data.packing import pack_people

Workload = Literal["deblur", "bev", "reid"]

_NO_SIZE: Final = (1, 1)


def workload_of(root: Path) -> Workload:
    """Tell which workload a folder or pack is for; what is not recognised is looked at as clips."""
    if is_pack(root):
        packed = Pack(root).workload
        return "bev" if packed == "bev" else "reid" if packed == "reid" else "deblur"
    if is_world(root):
        return "bev"
    return "reid" if is_people(root) else "deblur"


def check_dataset(root: Path) -> DataCheck:
    """Read everything in a folder or pack.

    Raises:
        DataError: Where there is no dataset.
    """
    workload = workload_of(root)
    if workload == "bev":
        return check_world(root)
    return check_people(root) if workload == "reid" else check_clips(root)


def pack_dataset(root: Path, output: Path | None, *, frames: Frames | None) -> PackSummary:
    """Put everything in a folder into one file.

    Args:
        root: Folder of the dataset.
        output: The pack to write; None for one beside the dataset.
        frames: How images lie in it; None for what is usual: clips as pixels, other images as the
            bytes of their files, since training decodes them at a size that a configuration names.

    Raises:
        ConfigError: Where images cannot be decoded without a configuration.
        DataError: Where something is missing or cannot be read; nothing is left behind.
    """
    target = beside(root) if output is None else output
    workload = workload_of(root)
    if workload == "deblur":
        return pack_clips(root, target, frames=frames or "decoded")
    if frames == "decoded":
        raise ConfigError(
            f"--frames decoded needs a configuration: at which size the images of {root} are "
            "decoded follows from its data.image_size; pack that, or take --frames encoded"
        )
    if workload == "bev":
        return pack_world(root, target)
    return pack_people(root, target, frames="encoded", image_size=_NO_SIZE)


def usual_task(root: Path) -> tuple[RunConfig, Task[Any], tuple[str, ...]]:
    """Give a dataset as training would read it by the settings' own defaults.

    Where clips are too small or too short for these, whole frames and shorter segments are taken.

    Returns:
        The configuration, its task, and the settings that are not defaults.

    Raises:
        DataError: Where there is nothing to train on.
    """
    kind, attempts = _attempts(root)
    failure: DataError | None = None
    for settings in attempts:
        tree = {"model": {"kind": kind}, "data": {"root": str(root)}, "train": {"steps": 1000}}
        config = config_from(tree, list(settings)).config
        task = build_task(config)
        try:
            task.train_samples()
        except DataError as error:
            failure = failure or error
        else:
            return config, task, (f"model.kind={kind}", *settings)
    assert failure is not None, "at least one was tried"
    raise failure


def _attempts(root: Path) -> tuple[str, Iterator[tuple[str, ...]]]:
    workload = workload_of(root)
    if workload == "bev":
        version = versions_in(root)[-1]
        return "lss_swin_surround", iter([(f"data.version={version}",)])
    if workload == "reid":
        size = packed_size(root)
        fitting = () if size is None else (f"data.image_size={list(size)}",)
        return "clip_reid", iter([("data.holdout=0", "train.batch_size=32", *fitting)])
    splits = clip_splits(root)
    named = () if "train" in splits else (f"data.split={splits[0]}",)
    cuts = ((), ("data.crop=null",), ("data.crop=null", "data.clip_len=1"))
    return "vrt", ((*named, *cut) for cut in cuts)
