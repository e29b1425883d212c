"""When one rank ends, the others learn of it by a broken connection: say whose fault it was."""

from collections.abc import Iterator
from contextlib import contextmanager
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
)


class LostRankError(PitstopError):
    """Another rank ended, and this one cannot go on without it."""


@contextmanager
def naming_lost_ranks(ranks: Ranks, folder: Path) -> Iterator[None]:
    """Turn a connection broken inside this context into what the rank at its other end says.

    A rank writes the ending into its record before it leaves, so the reason is there to be read.

    Raises:
        LostRankError: Where another rank ended.
    """
    try:
        yield
    except RuntimeError as error:
        if ranks.world_size == 1 or not _is_broken_connection(error):
            raise
        raise LostRankError(
            f"rank {ranks.rank} cannot go on without the others: {_reason(ranks.rank, folder)}; "
            "fix that, and continue with --resume auto"
        ) from error


def _is_broken_connection(error: RuntimeError) -> bool:
    if isinstance(error, distributed.DistBackendError | distributed.DistNetworkError):
        return True
    return any(words in str(error).lower() for words in _BROKEN)


def _reason(own_rank: int, folder: Path) -> str:
    try:
        others = [
            rank for rank in read_run(folder, with_steps=False).ranks if rank.rank != own_rank
        ]
    except RecordError:
        others = []
    reasons = [
        f"rank {rank.rank} failed with {rank.ending.reason}"
        for rank in others
        if rank.ending is not None and not _is_a_consequence(rank)
    ]
    return "; ".join(reasons) or (
        f"one of them ended without writing a reason into its record ({folder / 'rank-*.jsonl'}): "
        "it was killed, or its machine failed or cannot be reached"
    )


def _is_a_consequence(rank: RankRecord) -> bool:
    return rank.ending is not None and rank.ending.reason.startswith(LostRankError.__name__)
