"""Whose work is on a stack, learnt from a training loop as it goes."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from pitstop_probe.stacks import stack as stacks
from pitstop_probe.stacks.stack import Stack
from pitstop_probe.stacks.statements import Statement, statements_of


def test_a_source_is_read_once_however_many_lines_call_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def counted(file: str, function: str, first_line: int) -> list[Statement]:
        read.append(function)
        return statements_of(file, function, first_line)

    monkeypatch.setattr(stacks, "statements_of", counted)
    stack = Stack()

    def model(_: int) -> FrameType:
        stack.learn_model_call(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return sys._getframe(1)  # pyright: ignore[reportPrivateUsage]

    def loop() -> list[str | None]:
        batch = 1
        first = model(batch)
        found = [stack.purpose(first)]
        second = model(batch)
        found.append(stack.purpose(second))
        return found

    # In a thread of its own, so that no frame of whatever runs the tests is around it.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(loop).result() == ["loss", "loss"]
    assert read.count("loop") == 1
