"""What torch.compile did, by its own counters."""

import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from pitstop_probe.inventory import compile_counts


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """The compiler's counters after it made eight graphs."""
    found = {"stats": Counter(unique_graphs=8)}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=found))
    return found


def test_a_branch_on_a_value_is_a_break_that_only_its_continuation_shows(
    counters: dict[str, Counter[str]],
) -> None:
    counters["resumes"] = Counter(
        {"torch_dynamo_resume_in_forward_at_6": 4, "torch_dynamo_resume_in_look_at_it_at_19": 2}
    )
    assert compile_counts() == {
        "graphs": 8,
        "graph_breaks": 2,
        "reasons": ["a break in forward, line 6", "a break in look_at_it, line 19"],
    }


def test_a_break_that_was_counted_is_not_counted_twice(counters: dict[str, Counter[str]]) -> None:
    counters["graph_break"] = Counter({"print": 1, "item": 2})
    counters["resumes"] = Counter({"torch_dynamo_resume_in_forward_at_6": 3})
    counts = compile_counts()
    assert counts is not None
    assert counts["graph_breaks"] == 3
    assert counts["reasons"] == ["item", "print", "a break in forward, line 6"]


def test_without_a_graph_nothing_was_compiled(counters: dict[str, Counter[str]]) -> None:
    counters["stats"].clear()
    assert compile_counts() is None
