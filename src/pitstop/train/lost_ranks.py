"""When one rank ends, the others learn of it by a broken connection: say whose fault it was."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from torch import distributed

from pitstop.errors import PitstopError, RecordError
from pitstop.records.run import RankRecord
from pitstop.records.store import read_run
from pitstop.train.ranks import Ranks

# gloo raises a plain RuntimeError; these are the system's own words in it, and its own of a limit.
_BROKEN: Final = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection timed out",
    "no route to host",
    "network is unreachable",
    "timed out waiting",
    "timeout caused pair closure",
    "pair is not connected",
    "connect timeout",
    "read timeout",
    "write timeout",
    "socket timeout",
    "wait timeout",
)


class LostRankError(PitstopError):
    """Another rank ended, and this one cannot go on without it."""

    # Torch waits for the lost rank once more when the process group is let go of.
    ends_at_once = True


@contextmanager
def naming_lost_ranks(ranks: Ranks, folder: Path | None) -> Iterator[None]:
    """Turn a connection broken inside this context into what the rank at its other end says.

    A rank writes the ending into its record before it leaves, so the reason is there to be read.

    Args:
        ranks: All of them.
        folder: Where their records are; None before they have begun one.

    Raises:
        LostRankError: Where another rank ended.
    """
    try:
        yield
    except RuntimeError as error:
        if ranks.world_size == 1 or not _is_broken_connection(error):
            raise
        raise LostRankError(
            f"rank {ranks.rank}{_place(ranks)} cannot go on without the others: "
            f"{_reason(ranks, folder)}; fix that, and continue with --resume auto"
        ) from error


def _is_broken_connection(error: RuntimeError) -> bool:
    if isinstance(error, distributed.DistBackendError | distributed.DistNetworkError):
        return True
    return any(words in str(error).lower() for words in _BROKEN)


def _place(ranks: Ranks) -> str:
    return f" on {ranks.host.name}" if len(ranks.hosts) > 1 and ranks.host is not None else ""


def _reason(ranks: Ranks, folder: Path | None) -> str:
    others: list[RankRecord] = []
    if folder is not None:
        with suppress(RecordError):
            found = read_run(folder, with_steps=False).ranks
            others = [rank for rank in found if rank.rank != ranks.rank]
    reasons = [
        f"rank {rank.rank} failed with {rank.ending.reason}"
        for rank in others
        if rank.ending is not None and not _is_a_consequence(rank)
    ]
    return "; ".join(reasons) or f"{_silence(folder)}{_elsewhere(ranks)}"


def _silence(folder: Path | None) -> str:
    if folder is None:
        return "one of them ended or cannot be reached"
    return (
        f"one of them ended without writing a reason into its record ({folder / 'rank-*.jsonl'}): "
        "it was killed, or its machine failed or cannot be reached"
    )


def _elsewhere(ranks: Ranks) -> str:
    """Name the other hosts: records of their ranks may lie there."""
    others = [str(host) for host in ranks.hosts if ranks.rank not in host.ranks]
    return f"; other hosts of this run: {', '.join(others)}" if others else ""


def _is_a_consequence(rank: RankRecord) -> bool:
    return rank.ending is not None and rank.ending.reason.startswith(LostRankError.__name__)
