"""Where a run begins: at a checkpoint, or at the beginning."""

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from pitstop.errors import CheckpointError, ConfigError
from pitstop.train.state.checkpoint import (
    Checkpoint,
    Skipped,
    find_newest_whole,
    has_saves,
    open_checkpoint,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """Where a run begins: at a checkpoint, or at the beginning."""

    checkpoint: Checkpoint | None = None
    skipped: tuple[Skipped, ...] = ()
    set_aside: Path | None = None
    """Where checkpoints of earlier attempts went that this one does not go on from."""

    @property
    def messages(self) -> tuple[str, ...]:
        """What should be said aloud about it."""
        lines = [f"skipped {skip.path}: {skip.reason}" for skip in self.skipped]
        if self.checkpoint is not None:
            lines.append(f"going on from {self.checkpoint.path}")
        if self.set_aside is not None:
            lines.append(f"earlier checkpoints are now in {self.set_aside}")
        return tuple(lines)


def find_starting_point(folder: Path, resume: Path | str | None) -> StartingPoint:
    """Find the checkpoint to go on from; one rank does it, and the others learn of it.

    Args:
        folder: Where the run's checkpoints are.
        resume: A checkpoint's folder; "auto" for the newest whole one of this run, or its
            beginning where nothing was saved; "never" for the beginning, with what was saved
            before set aside; None for a new run.

    Raises:
        CheckpointError: The named checkpoint cannot be used, or none of those that there are.
        ConfigError: A new run would write into the folder of an old one.
    """
    saves = folder / "checkpoints"
    if resume is None:
        if saves.exists():
            raise ConfigError(
                f"{folder} holds a run already; go on with it by --resume auto, or give this one "
                "another name (run.name)"
            )
        return StartingPoint()
    if resume == "never":
        return StartingPoint(set_aside=_set_aside(saves))
    if resume == "auto":
        checkpoint, skipped = find_newest_whole(saves)
        if checkpoint is None and has_saves(saves):
            raise CheckpointError(
                f"no checkpoint of {folder} can be used: {_reasons(skipped)}; restore one, or "
                "begin at step 0 with --resume never, which keeps them aside"
            )
        return StartingPoint(checkpoint=checkpoint, skipped=tuple(skipped))
    return StartingPoint(checkpoint=open_checkpoint(Path(resume)))


def seen_from_here(
    start: StartingPoint, folder: Path, resume: Path | str | None, *, compares: bool
) -> StartingPoint:
    """Give the first rank's starting point as this host sees it, whose folders may lie elsewhere.

    Args:
        start: What the first rank found.
        folder: Where the run's checkpoints are on this host.
        resume: What this rank was asked to go on from.
        compares: Whether to see that this host reads the bytes that the first rank read.

    Raises:
        CheckpointError: It does not.
    """
    found = start.checkpoint
    if found is None:
        return start
    path = folder / "checkpoints" / found.path.name if resume == "auto" else Path(str(resume))
    if compares and open_checkpoint(path).manifest != found.manifest:
        raise CheckpointError(f"{path} is another checkpoint than the first rank's {found.path}")
    return replace(start, checkpoint=replace(found, path=path))


def _reasons(skipped: list[Skipped]) -> str:
    shown = "; ".join(f"{skip.path.name}: {skip.reason}" for skip in skipped[:3])
    return shown if len(skipped) <= 3 else f"{shown}; and {len(skipped) - 3} more"


def _set_aside(saves: Path) -> Path | None:
    if not saves.exists():
        return None
    aside = next(
        path
        for number in count(1)
        if not (path := saves.with_name(f"{saves.name}-{number}")).exists()
    )
    saves.rename(aside)
    return aside
