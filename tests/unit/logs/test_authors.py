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


def results(writer: str, seeds: range) -> Counter[str]:
    """Count what came of each author's log; the first misreading is shown with its seed."""
    found: Counter[str] = Counter()
    for seed in seeds:
        lines, truth = WRITERS[writer](seed)
        result, why = judge(lines, truth)
        assert result != "misread", f"{writer} {seed}: {'; '.join(why)}"
        found[result] += 1
    return found


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_stated_of_an_authors_log_is_so(writer: str) -> None:
    found = results(writer, range(SEEDS))
    assert found["right"] >= LEAST_READ * SEEDS, found


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_stated_of_many_authors_logs_is_so(writer: str) -> None:
    found = results(writer, range(SEEDS, SEEDS + MORE_SEEDS))
    assert found["right"] >= LEAST_READ * MORE_SEEDS, found
