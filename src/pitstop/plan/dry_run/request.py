"""Dry runs asked for from outside: several at a time, each in a process of its own."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pitstop.errors import PitstopError
from pitstop.records.plans.plan import StepTrace
from pitstop.records.store import from_json, write_json

CHILD: Final = "pitstop.plan.dry_run.child"
_AT_ONCE: Final = 2
_LONGEST_S: Final = 600


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
    """A training step, or `eval`: forward alone, nothing kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of it."""

    trace: StepTrace | None = None
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
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(trace_in_child, requests))


def trace_in_child(request: Request) -> Answer:
    """Run one request in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="pitstop-plan-") as name:
        asked, answered = Path(name) / "request.json", Path(name) / "answer.json"
        write_json(request, asked)
        try:
            ended = subprocess.run(  # noqa: S603 - this interpreter, a module of ours
                [sys.executable, "-m", CHILD, str(asked), str(answered)],
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer(error=f"the dry run took more than {_LONGEST_S} s and was ended")
        if answered.exists():
            return from_json(answered.read_text(encoding="utf-8"), Answer)
        return Answer(error=_how_it_ended(ended))


def _how_it_ended(ended: "subprocess.CompletedProcess[str]") -> str:
    lines = ended.stderr.strip().splitlines() or ["it said nothing"]
    if ended.returncode < 0:
        return f"the dry run was ended by signal {-ended.returncode}: {lines[-1]}"
    return f"the dry run failed: {lines[-1]}"
