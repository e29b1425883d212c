"""Workers that share the tests begin with the long ones, and lose none."""

import itertools
from pathlib import Path

import pytest

from tests.order import SECONDS, longest_first

ROOT = Path(__file__).parents[2]
LONG = {"a": 90, "b": 60, "c": 50, "d": 20}


def laid_out(counts: dict[str, int], workers: int) -> list[str]:
    tests = [f"{name} {number}" for name, count in counts.items() for number in range(count)]
    found = longest_first(tests, lambda test: test.split()[0], workers, LONG)
    assert sorted(found) == sorted(tests)
    return found


def files_of(tests: list[str]) -> list[str]:
    return [name for name, _ in itertools.groupby(tests, lambda test: test.split()[0])]


def test_each_worker_begins_with_its_share_of_the_long_files() -> None:
    found = laid_out({"x": 5, "b": 2, "y": 6, "d": 1, "a": 1, "c": 3, "z": 2}, 2)
    assert files_of(found[:10]) == ["a", "d", "x", "y"]
    assert files_of(found[10:]) == ["b", "c", "y", "z"]


def test_tests_of_a_file_keep_their_order() -> None:
    found = laid_out({"x": 5, "a": 3, "b": 2}, 2)
    assert [test for test in found if test[0] == "x"] == [f"x {number}" for number in range(5)]
    assert found[:3] == ["a 0", "a 1", "a 2"]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("counts", [{}, {"a": 9, "x": 1}, {"x": 1, "a": 1}, {"a": 1, "b": 20}])
def test_any_division_keeps_every_test(counts: dict[str, int], workers: int) -> None:
    laid_out(counts, workers)


def test_every_long_file_is_there() -> None:
    assert [name for name in SECONDS if not (ROOT / name).is_file()] == []
