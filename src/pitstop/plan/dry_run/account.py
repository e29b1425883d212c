"""From a ledger to what holds the memory of a step at its peak, piece by piece."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pitstop.plan.dry_run.allocator import replay
from pitstop.plan.dry_run.ledger import Ledger, Piece

SAVED = "activations"
TEMPORARY = "temporary"
BATCH = "batch"
_FORWARD = frozenset({"forward", "loss"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The memory of a step."""

    peak_bytes: int
    place: tuple[str, ...]
    operation: str
    owners: dict[str, int]
    saved_bytes: int
    reserved_bytes: int


def settle(ledger: Ledger, first_event: int, pieces: Sequence[Piece] | None = None) -> Account:
    """Sum up everything from an event on; what was there before counts as held.

    Args:
        ledger: Of the step.
        first_event: Of the step.
        pieces: What is there in the place of the ledger's pieces.
    """
    pieces = ledger.pieces if pieces is None else pieces
    _name_the_rest(pieces, ledger.backward_began[-1] if ledger.backward_began else None)
    peak, at = _peak(pieces, first_event)
    owners: dict[str, int] = defaultdict(int)
    for piece in pieces:
        if _lives(piece, at):
            owners[piece.owner or TEMPORARY] += piece.size
    newest = max((piece for piece in pieces if piece.born <= at), key=lambda piece: piece.born)
    backward = ledger.backward_began[-1] if ledger.backward_began else at
    saved = (piece.size for piece in pieces if piece.owner == SAVED and _lives(piece, backward))
    return Account(
        peak_bytes=peak,
        place=newest.place,
        operation=newest.operation,
        owners=dict(sorted(owners.items(), key=lambda item: -item[1])),
        saved_bytes=sum(saved),
        reserved_bytes=replay(_events(pieces)).peak_reserved_bytes,
    )


def _name_the_rest(pieces: Sequence[Piece], backward: int | None) -> None:
    for piece in pieces:
        part = piece.place[0] if piece.place else ""
        if piece.owner is not None:
            continue
        if part == "copy":
            piece.owner = BATCH
        elif part in _FORWARD and backward is not None and _lives(piece, backward):
            piece.owner = SAVED
        elif not part and piece.died is None:
            piece.owner = "other"


def _lives(piece: Piece, event: int) -> bool:
    return piece.born <= event and (piece.died is None or piece.died > event)


def _peak(pieces: Sequence[Piece], first_event: int) -> tuple[int, int]:
    """Give the most bytes at one time from an event on, and the event that brought them there."""
    changes = sorted(
        [(piece.born, piece.size) for piece in pieces]
        + [(piece.died, -piece.size) for piece in pieces if piece.died is not None]
    )
    held, most, at = 0, 0, 0
    for event, change in changes:
        held += change
        if event >= first_event and held > most:
            most, at = held, event
    return most, at


def _events(pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    changes = [(piece.born, number, piece.size) for number, piece in enumerate(pieces)]
    changes += [
        (piece.died, number, 0) for number, piece in enumerate(pieces) if piece.died is not None
    ]
    for _, number, size in sorted(changes):
        yield number, size
