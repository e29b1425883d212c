"""The order in which several workers run the tests: long files first, as much for each worker."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import pytest

Test = TypeVar("Test")

SECONDS: Final = {
    "tests/conformance/test_export.py": 125,
    "tests/drill/test_drill.py": 140,
    "tests/drill/test_nodes.py": 85,
    "tests/golden/test_golden_losses.py": 22,
    "tests/integration/test_cache_kill.py": 60,
    "tests/integration/test_demo.py": 70,
    "tests/integration/test_every_rule_fires.py": 95,
    "tests/integration/test_shard_checkpoints.py": 60,
    "tests/unit/cli/test_tune_command.py": 30,
    "tests/unit/kernels/test_alignment_kernels.py": 135,
    "tests/unit/kernels/test_block.py": 135,
    "tests/unit/kernels/test_splat_columns.py": 30,
    "tests/unit/kernels/test_window_attention.py": 350,
    "tests/unit/kernels/test_windows.py": 30,
    "tests/unit/logs/test_authors.py": 105,
    "tests/unit/plan/test_dry_run.py": 70,
    "tests/unit/tune/script/test_study.py": 75,
    "tests/unit/workloads/deblur/model/test_against_oracle.py": 75,
}
"""About how much processor time the slow tests of a file take, where it is far from the usual."""
USUAL_SECONDS: Final = 6
"""About how much a slow test takes."""


def by_length(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Lay out what was collected: files with slow tests first."""
    slow = Counter(file_of(item) for item in items if item.get_closest_marker("slow"))
    seconds = {name: SECONDS.get(name, USUAL_SECONDS * count) for name, count in slow.items()}
    return longest_first(items, file_of, workers, seconds)


def file_of(item: pytest.Item) -> str:
    """Where a test stands."""
    return item.nodeid.partition("::")[0]


def longest_first(
    tests: Sequence[Test],
    file_of: Callable[[Test], str],
    workers: int,
    seconds: Mapping[str, int],
) -> list[Test]:
    """Lay out tests for workers each of whom takes an equal part of the list, one after another.

    The tests of a file stay together: they share what the first of them made. Whoever is done
    first takes from the end of another's part, where the short ones are.
    """
    files: dict[str, list[Test]] = {}
    for test in tests:
        files.setdefault(file_of(test), []).append(test)
    parts: list[list[Test]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for name in sorted(files.keys() & seconds.keys(), key=lambda name: (-seconds[name], name)):
        least = loads.index(min(loads))
        parts[least] += files.pop(name)
        loads[least] += seconds[name]
    short = [test for group in files.values() for test in group]
    laid_out: list[Test] = []
    for number, part in enumerate(parts, start=1):
        room = max(0, len(tests) * number // workers - len(laid_out) - len(part))
        laid_out += [*part, *short[:room]]
        del short[:room]
    return [*laid_out, *short]
