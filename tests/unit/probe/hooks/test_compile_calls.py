"""Calls of torch.compile: the script's own are counted, what packages ask for is theirs."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pitstop_probe.hooks.compile_calls import CompileCalls
from pitstop_probe.stacks.stack import Stack


@pytest.fixture
def calls() -> Iterator[CompileCalls]:
    calls = CompileCalls(torch, Stack())
    yield calls
    calls.patch.off()


def test_a_call_whose_result_is_thrown_away_compiles_nothing(calls: CompileCalls) -> None:
    assert calls.summary(None) is None
    torch.compile(nn.Linear(2, 2), backend="eager")
    found = calls.summary(None)
    assert found is not None
    assert (found["calls"], found["graphs"]) == (1, 0)
    assert "test_compile_calls.py" in found["place"]


def test_what_was_compiled_stands_beside_the_calls(calls: CompileCalls) -> None:
    nn.Linear(2, 2).compile(backend="eager")
    found = calls.summary({"graphs": 3, "graph_breaks": 1, "reasons": ["item"]})
    assert found is not None
    assert (found["calls"], found["graphs"], found["reasons"]) == (1, 3, ["item"])
