"""Dry runs asked for from outside: several at a time, each in a process of its own.

One child imports torch and everything else that no request changes, and forks for each request.
What a dry run leaves behind (caches of models, changes to torch) is gone with its fork, so every
request is answered as if it had been the first. Where processes cannot fork, each has a child.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pitstop.errors import PitstopError
from pitstop.plan.child_process import LONGEST_S, ask_child, children_end_with_us
from pitstop.records.plans.evaluation import EvaluationTrace
from pitstop.records.plans.plan import StepTrace

CHILD: Final = "pitstop.plan.dry_run.child"
AT_ONCE: Final = 2
"""Dry runs side by side."""


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
    ranks: int = 1
    """Of the run; of several, the step is that of one."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What to run, one after the other."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What came of each, in the order of the requests."""

    answers: tuple[Answer, ...]


def trace_all(requests: Sequence[Request]) -> list[Answer]:
    """Run all requests, two at a time; answers in the order of the requests."""
    with ThreadPoolExecutor(AT_ONCE) as pool, children_end_with_us():
        if hasattr(os, "fork"):
            return pool.submit(_asked, requests).result()
        return list(pool.map(trace_in_child, requests))


def trace_in_child(request: Request) -> Answer:
    """Run one request in a process of its own."""
    [answer] = _asked([request])
    return answer


def _asked(requests: Sequence[Request]) -> list[Answer]:
    asked = Requests(requests=tuple(requests))
    longest_s = LONGEST_S * -(-len(requests) // AT_ONCE)
    found = ask_child(CHILD, asked, Answers, longest_s=longest_s)
    if isinstance(found, str):
        return [Answer(error=found) for _ in requests]
    return list(found.answers)
