"""The replayed allocator against rules that can be worked out by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.plan.dry_run.allocator import Allocator, replay

MIB = 2**20


def rounded(size: int) -> int:
    return -(-size // 512) * 512


def test_small_pieces_share_segments_of_two_mebibytes() -> None:
    allocator = replay((piece, 512 * 1024) for piece in range(4))
    assert allocator.peak_reserved_bytes == 2 * MIB
    assert replay((piece, 512 * 1024) for piece in range(5)).peak_reserved_bytes == 4 * MIB


def test_middle_pieces_share_segments_of_twenty_mebibytes() -> None:
    assert replay((piece, 5 * MIB) for piece in range(4)).peak_reserved_bytes == 20 * MIB
    assert replay((piece, 5 * MIB) for piece in range(5)).peak_reserved_bytes == 40 * MIB


def test_a_large_piece_has_a_segment_of_its_own_rounded_up() -> None:
    assert replay([(0, 11 * MIB + 512)]).peak_reserved_bytes == 12 * MIB


def test_what_was_given_back_is_used_again() -> None:
    events = [(0, 64 * MIB), (0, 0), (1, 64 * MIB), (1, 0), (2, 32 * MIB)]
    assert replay(events).peak_reserved_bytes == 64 * MIB


def test_free_neighbours_become_one_block() -> None:
    allocator = Allocator()
    first, second = allocator.take(10 * MIB - 512), allocator.take(9 * MIB)
    allocator.give_back(first)
    allocator.give_back(second)
    assert allocator.take(20 * MIB) is not None
    assert allocator.peak_reserved_bytes == 20 * MIB


def test_memory_between_pieces_is_lost() -> None:
    # Every second piece goes: half is free, and no large piece fits between.
    events = [(piece, 5 * MIB) for piece in range(8)]
    events += [(piece, 0) for piece in range(0, 8, 2)]
    assert replay([*events, (99, 9 * MIB)]).peak_reserved_bytes > 40 * MIB


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.booleans()), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_it_never_holds_less_than_was_asked_for(steps: list[tuple[int, bool]]) -> None:
    allocator, held, most = Allocator(), [], 0
    for size, gives_back in steps:
        piece = rounded(size)
        held.append((allocator.take(piece), piece))
        most = max(most, sum(each for _, each in held))
        if gives_back:
            allocator.give_back(held.pop(len(held) // 2)[0])
    assert allocator.peak_reserved_bytes >= most
    # Where everything was given back, the same again needs nothing more.
    for number, _ in held:
        allocator.give_back(number)
    before = allocator.reserved_bytes
    assert allocator.take(512) is not None
    assert allocator.reserved_bytes == before or before == 0 or _only_large(steps)


def _only_large(steps: list[tuple[int, bool]]) -> bool:
    return all(rounded(size) > MIB for size, _ in steps)
