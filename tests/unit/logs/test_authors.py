"""No number that is not so: logs of made-up authors, each read and held against its truth.

A misreading found in a public log is fixed by making an author who writes like that, so that the
next one of its kind is found here.
"""

from collections import Counter

import pytest

from tests.unit.logs.authors.oracle import WRITERS, judge

SEEDS = 60
MORE_SEEDS = 1500
LEAST_READ = 0.85


def results(writer: str, seeds: range) -> tuple[Counter[str], list[str]]:
    """Count what came of each author's log, and say what was misread with its seed."""
    found: Counter[str] = Counter()
    misread: list[str] = []
    for seed in seeds:
        lines, truth = WRITERS[writer](seed)
        result, why = judge(lines, truth)
        found[result] += 1
        if result == "misread":
            misread.append(f"{writer} {seed}: {'; '.join(why)}")
    return found, misread


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_stated_of_an_authors_log_is_so(writer: str) -> None:
    found, misread = results(writer, range(SEEDS))
    assert misread == []
    assert found["right"] >= LEAST_READ * SEEDS, found


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_stated_of_many_authors_logs_is_so(writer: str) -> None:
    found, misread = results(writer, range(SEEDS, SEEDS + MORE_SEEDS))
    assert misread == []
    assert found["right"] >= LEAST_READ * MORE_SEEDS, found
