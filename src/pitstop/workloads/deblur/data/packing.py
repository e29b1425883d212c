"""A dataset of clips read through from end to end, and put into one file."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.config.workloads.deblur import DeblurData
from pitstop.data.check import DataCheck, SplitFound
from pitstop.data.images import DAMAGED, open_image
from pitstop.data.pack import Frames, PackSummary, PackWriter
from pitstop.errors import DataError
from pitstop.workloads.deblur.data.dataset import (
    ClipFiles,
    SpikeFiles,
    check_clip,
    input_folder,
    spike_paths,
    stated_spike_size,
)
from pitstop.workloads.deblur.data.frames import Bytes
from pitstop.workloads.deblur.data.storage import (
    WORKLOAD,
    ClipStorage,
    PackStorage,
    count_planes,
    open_storage,
)

_BLURS: Final = ("blur", "blur_gamma")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clip:
    """One clip by one of its blurred versions."""

    split: str
    section: DeblurData
    spikes: SpikeFiles | None
    files: ClipFiles
    folder: Path

    def by_kind(self) -> dict[str, list[Path]]:
        kinds = {input_folder(self.section): list(self.files.blur)}
        kinds["sharp"] = list(self.files.sharp)
        if self.spikes is not None:
            names = [path.name for path in self.files.blur]
            kinds["spike"] = spike_paths(self.folder / self.spikes.folder, names)
        return kinds


def check_clips(root: Path, section: DeblurData | None = None) -> DataCheck:
    """Read every frame and every spike file of a dataset.

    Args:
        root: Folder or pack.
        section: Settings to look with: its two splits and its blurred version only. None for
            everything there is.

    Raises:
        DataError: Where there is no dataset.
    """
    begun = time.perf_counter()
    storage = open_storage(root)
    problems: list[str] = []
    notes: list[str] = []
    splits: dict[str, SplitFound] = {}
    for split in _splits(storage, root, section):
        try:
            clips = [*_clips(storage, root, split, section=section, notes=notes)]
            found, wrong = _check_files(storage, clips)
        except DataError as error:
            problems.append(str(error))
            continue
        splits[split] = found
        problems += wrong
        if not clips:
            problems.append(
                f"{root / split} holds no clips: each is a folder with blur/ and sharp/"
            )
    if isinstance(storage, PackStorage):
        problems += [f"{path} is damaged: its bytes have changed" for path in storage.damaged()]
    return DataCheck(
        root=str(root),
        workload=WORKLOAD,
        packed=isinstance(storage, PackStorage),
        splits=splits,
        problems=tuple(dict.fromkeys(problems)),
        notes=tuple(dict.fromkeys(notes)),
        took_s=time.perf_counter() - begun,
    )


def pack_clips(
    root: Path, output: Path, *, frames: Frames, section: DeblurData | None = None
) -> PackSummary:
    """Put the clips of all splits into one file: frames, spikes, and the size of spike frames.

    Args:
        root: Folder of the dataset.
        output: The pack to write.
        frames: Pixels decoded once for all (`decoded`), or the bytes of the files (`encoded`).
        section: As in `check_clips`.

    Raises:
        DataError: Where a file is missing or cannot be read; nothing is left behind.
    """
    storage = open_storage(root)
    if isinstance(storage, PackStorage):
        raise DataError(f"{root} is a pack already")
    source_bytes = 0
    with PackWriter(output, workload=WORKLOAD) as writer:
        for path, kind in _to_pack(storage, root, section):
            data = storage.data(path)
            source_bytes += len(data)
            is_frame = kind not in ("spike", "facts")
            content = _decoded(data, path) if is_frame and frames == "decoded" else data
            writer.add(path.relative_to(root).as_posix(), kind, content)
        if not writer.members:
            raise DataError(f"{root} holds nothing to pack")
    return writer.summary(source_bytes=source_bytes)


def clip_splits(root: Path) -> list[str]:
    """Name the splits of a folder or pack that hold clips.

    Raises:
        DataError: Where there are none.
    """
    return _splits(open_storage(root), root, None)


def _to_pack(
    storage: ClipStorage, root: Path, section: DeblurData | None
) -> Iterator[tuple[Path, str]]:
    """List every file with its kind, the small one with the size of spike frames first.

    Neighbouring frames of a clip lie next to each other, as samples read them.
    """
    seen: set[Path] = set()
    if stated_spike_size(storage, root) is not None:
        yield root / "config.yaml", "facts"
    for split in _splits(storage, root, section):
        for clip in _clips(storage, root, split, section=section, notes=[]):
            if clip.files.problems:
                raise DataError(f"{clip.files.problems[0]}; see all with `pitstop data check`")
            for kind, paths in clip.by_kind().items():
                # Two blurred versions of a clip share their sharp frames and spikes.
                for path in (path for path in paths if path not in seen):
                    yield path, kind
                seen.update(paths)


def _splits(storage: ClipStorage, root: Path, section: DeblurData | None) -> list[str]:
    if section is not None:
        return list(dict.fromkeys((section.split, section.eval_split)))
    found = [path.name for path in storage.folders(root) if _split_has_clips(storage, path)]
    if not found:
        for deeper in storage.folders(root):
            if any(_split_has_clips(storage, path) for path in storage.folders(deeper)):
                raise DataError(f"{root} holds no clips, but {deeper} does; name that folder")
        raise DataError(
            f"{root} holds no clips: they lie in <split>/<clip>/blur and <split>/<clip>/sharp; "
            "generate some with `pitstop data make deblur FOLDER`"
        )
    return found


def _split_has_clips(storage: ClipStorage, split: Path) -> bool:
    return any(
        clip / blur in storage.folders(clip) for clip in storage.folders(split) for blur in _BLURS
    )


def _clips(
    storage: ClipStorage,
    root: Path,
    split: str,
    *,
    section: DeblurData | None,
    notes: list[str],
) -> Iterator[_Clip]:
    """Look at the clips of a split, by each blurred version that is wanted."""
    folder = root / split
    if folder not in storage.folders(root):
        raise DataError(f"there is no folder {folder}")
    for clip in storage.folders(folder):
        inside = {path.name for path in storage.folders(clip)}
        blurs = [blur for blur in _BLURS if blur in inside] if section is None else [section.blur]
        for blur in blurs or _BLURS[:1]:
            own = (section or DeblurData()).model_copy(update={"blur": blur})
            spikes = _spikes(storage, root, own, notes) if own.spike_dir in inside else None
            files = check_clip(storage, clip, own, spikes)
            yield _Clip(split=split, section=own, spikes=spikes, files=files, folder=clip)


def _spikes(
    storage: ClipStorage, root: Path, section: DeblurData, notes: list[str]
) -> SpikeFiles | None:
    stated = stated_spike_size(storage, root)
    if stated is None and "spike_height" in section.model_fields_set:
        stated = section.spike_height, section.spike_width
    if stated is None:
        notes.append(
            f"spikes were left out: nothing says how large a spike frame is; write spike_h and "
            f"spike_w into {root / 'config.yaml'}"
        )
        return None
    height, width = stated
    return SpikeFiles(folder=section.spike_dir, height=height, width=width, bins=section.voxel_bins)


def _check_files(storage: ClipStorage, clips: list[_Clip]) -> tuple[SplitFound, list[str]]:
    """Decode what can be decoded; a pack's sums are checked elsewhere."""
    counts, size_bytes, problems = Counter[str](), 0, []
    for clip in clips:
        problems += [*clip.files.problems, *_odd_lengths(storage, clip)]
        for kind, paths in clip.by_kind().items():
            counts[kind] += len(paths)
            for path in paths:
                try:
                    data = storage.data(path)
                    size_bytes += len(data)
                    if kind != "spike" and not isinstance(storage, PackStorage):
                        _decoded(data, path)
                except DataError as error:
                    problems.append(str(error))
    problems += _without_spikes(clips)
    names = {clip.folder for clip in clips}
    return SplitFound(sequences=len(names), files=dict(counts), size_bytes=size_bytes), problems


def _odd_lengths(storage: ClipStorage, clip: _Clip) -> Iterator[str]:
    """Name spike files that are cut off at the end of a plane, which their length alone hides.

    All frames of a clip last equally long but the last, after which nothing was recorded.
    """
    planes: dict[Path, int] = {}
    if clip.spikes is None:
        return
    for path in clip.by_kind()["spike"]:
        with suppress(DataError):  # named already
            planes[path] = count_planes(storage, path, (clip.spikes.height, clip.spikes.width))
    if not planes:
        return
    usual = max(set(planes.values()), key=list(planes.values()).count)
    last = max(planes)
    for path, count in planes.items():
        if count > usual or (count < usual and path != last):
            yield f"{path} has {count} spike planes, and most files of its clip have {usual}"


def _without_spikes(clips: list[_Clip]) -> list[str]:
    """Name clips that have no spikes although others have."""
    if all(clip.spikes is None for clip in clips):
        return []
    return [
        f"{clip.folder} has no folder {clip.section.spike_dir}, which other clips have"
        for clip in clips
        if clip.spikes is None
    ]


def _decoded(data: bytes, path: Path) -> Bytes:
    if not data:
        raise DataError(f"{path} is not an image: it is empty")
    try:
        with open_image(data) as image:
            return np.asarray(image.convert("RGB"))
    except DAMAGED as error:
        # The decoder's own words may name a buffer in memory, which tells nobody anything.
        reason = str(error).split("<", maxsplit=1)[0].strip()
        raise DataError(f"{path} cannot be decoded: {reason}") from error
