"""What a training process and its workers hold, asked for from outside."""

from dataclasses import dataclass
from typing import Final

from pitstop.plan.child_process import ask_child

CHILD: Final = "pitstop.plan.host.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """Which job to try."""

    config: str
    overrides: tuple[str, ...] = ()
    start_method: str | None = None
    """How workers will start; None for what this machine would do by itself."""
    computes_here: bool = False
    """Whether the step runs on this machine's processor, whose libraries then count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSizes:
    """What was measured. Bytes; proportional set size unless said otherwise."""

    process_bytes: int
    """The training process with model code and dataset, before data is read."""
    private_bytes: int
    """Of it, what a second process of the kind would not share."""
    tensor_bytes: tuple[int, ...]
    """Each tensor of the largest sample."""
    decoded_bytes: int | None
    """The whole training split as a cache would keep it; None where the dataset does not say."""
    first_worker_bytes: int | None
    """One worker, and what all workers need; None where none was tried."""
    next_worker_bytes: int | None
    """Each further one."""
    reading_bytes: int
    """What reading in the training process itself leaves there."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAnswer:
    """Sizes, or why there are none."""

    sizes: ProcessSizes | None = None
    error: str | None = None


def try_processes(request: TrialRequest) -> TrialAnswer:
    """Start what a job starts, for seconds, in a process of its own."""
    answer = ask_child(CHILD, request, TrialAnswer)
    return TrialAnswer(error=answer) if isinstance(answer, str) else answer
