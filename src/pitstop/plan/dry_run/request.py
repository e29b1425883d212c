"""Dry runs asked for from outside: several at a time, each in a process of its own."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pitstop.errors import PitstopError
from pitstop.plan.child_process import ask_child, children_end_with_us
from pitstop.records.plans.evaluation import EvaluationTrace
from pitstop.records.plans.plan import StepTrace

CHILD: Final = "pitstop.plan.dry_run.child"
_AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run on shapes alone."""

    config: str | None = None
    """Path of a configuration."""
    overrides: tuple[str, ...] = ()
    build: str | None = None
    """`module:function` of somebody's own; gives a model and a batch."""
    folder: str | None = None
    """Where that module lies."""
    batch_size: int | None = None
    precision: str = "fp32"
    optimizer: str = "adamw"
    recompute: str = "none"
    part: str = "train"
    """A training step (`train`), or one evaluation batch (`evaluation`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of it."""

    trace: StepTrace | None = None
    evaluation: EvaluationTrace | None = None
    error: str | None = None
    operation: str | None = None
    """The operation that could not be run on shapes alone."""

    def require(self) -> StepTrace:
        """Give the trace.

        Raises:
            PitstopError: Where there is none.
        """
        if self.trace is None:
            raise PitstopError(self.error or "the dry run gave nothing")
        return self.trace


def trace_all(requests: Sequence[Request]) -> list[Answer]:
    """Run all requests, two at a time; answers in the order of the requests."""
    with ThreadPoolExecutor(_AT_ONCE) as pool, children_end_with_us():
        return list(pool.map(trace_in_child, requests))


def trace_in_child(request: Request) -> Answer:
    """Run one request in a process of its own."""
    answer = ask_child(CHILD, request, Answer)
    return Answer(error=answer) if isinstance(answer, str) else answer
