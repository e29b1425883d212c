"""torch.compile, and the proof that something was compiled.

torch answers trouble by running uncompiled code without a word: a graph break cuts a block in two,
and a block that was compiled eight times is never compiled again. So what was compiled is counted,
from the compiler's own books, and a compile switch that compiled nothing is an error.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import torch._dynamo
from torch import nn
from torch._dynamo import utils as dynamo_books
from torch._inductor import list_mode_options

from pitstop.config.sections import CompileSection
from pitstop.errors import ConfigError

_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileProof:
    """What the compiler did while a `CompileMonitor` was open."""

    graphs: int
    """Graphs compiled, those of recompiles and of both sides of a break included."""
    frames_left_eager: int
    """Functions that the compiler tried and left uncompiled."""
    breaks: Mapping[str, int]
    """Graph breaks by reason."""
    recompiles: int | None
    """Functions compiled again for other inputs; None where this torch does not say."""
    recompile_reasons: tuple[str, ...]
    """Which expectations failed, each once."""
    compile_s: float | None
    """Seconds the host spent compiling, backward included; None where this torch does not say."""
    recorded_inputs: int
    """Inputs that the recorded CUDA graphs copy in before they run; 0 where none was recorded."""
    graphs_not_recorded: int
    """Compiled graphs that should have become CUDA graphs and could not."""


def records_cuda_graphs(section: CompileSection) -> bool:
    """Whether compiled code is to be recorded as CUDA graphs, and started as a whole."""
    return section.scope != "off" and section.mode in ("reduce-overhead", "max-autotune")


def apply_compile(
    model: nn.Module,
    section: CompileSection,
    regions: Sequence[nn.Module],
    *,
    backend: str = "inductor",
) -> None:
    """Compile a model in place, as a whole or each region; names in its state do not change.

    Nothing is compiled yet: that happens in the first steps, which a `CompileMonitor` should see.

    Raises:
        ConfigError: When regions are asked for and the model has none.
    """
    if section.scope == "off":
        return
    targets = list(regions) if section.scope == "regions" else [model]
    if not targets:
        raise ConfigError(
            "train.compile.scope is regions, but the workload names none; set it to whole or off"
        )
    # All blocks of a class share one limit on recompiles, and past it torch falls back silently.
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, len(targets) + 8)
    # Blocks of a class differ in shape by stage, and each shape comes again at every step. Left to
    # itself torch takes the second shape for one of very many and compiles for any, which takes
    # minutes and runs slower.
    dynamic = False if section.scope == "regions" else None
    how = _inductor_options(section) if backend == "inductor" else {"mode": section.mode}
    for target in targets:
        target.compile(backend=backend, dynamic=dynamic, **how)


def _inductor_options(section: CompileSection) -> dict[str, Any]:
    """What a mode stands for, without padded strides: torch takes a mode or options, not both.

    With padding, torch 2.11 lays a tensor out in one way and reads it in another once a side is
    long and odd (pytorch/pytorch#194281). The loss stays right and gradients are wrong: on an H200
    those of the head of bird's-eye view at batch 32 had a relative error of 1. As options, which
    reach the thread that compiles backward; a setting of this thread would not.
    """
    return {"options": {**list_mode_options(section.mode), "comprehensive_padding": False}}


def require_compiled(section: CompileSection, proof: CompileProof) -> None:
    """Check that a compile switch did something.

    Raises:
        ConfigError: When it is on and no graph was compiled, or none was recorded that should be.
    """
    if section.scope == "off":
        return
    if not proof.graphs:
        reasons = "; ".join(proof.breaks) or "torch.compile may be disabled in this process"
        raise ConfigError(
            f"train.compile.scope is {section.scope}, but nothing was compiled ({reasons}); set it "
            "to off, or fix the cause"
        )
    if records_cuda_graphs(section) and not proof.recorded_inputs:
        raise ConfigError(
            f"train.compile.mode is {section.mode}, but no CUDA graph was recorded (without a GPU "
            "none ever is; otherwise TORCH_LOGS=perf_hints says why); set it to default"
        )


class CompileMonitor:
    """Counts what the compiler does while it is open.

    Open it around the first steps. Books are read as differences, so what was compiled before does
    not count; what others compile meanwhile does, such as an 8-bit optimizer of torchao's.
    """

    def __init__(self) -> None:
        self._before = _Books.now()
        self._compiles: list[str] = []
        self._spent_ns: int = 0
        self._since_ns: int | None = None
        self._handler = _callback_handler()

    def __enter__(self) -> Self:
        self._before = _Books.now()
        if self._handler is not None:
            self._handler.register_start_callback(self._on_start)
            self._handler.register_end_callback(self._on_end)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            self._handler.remove_start_callback(self._on_start)
            self._handler.remove_end_callback(self._on_end)

    def proof(self) -> CompileProof:
        """Say what happened since it was opened."""
        now, before = _Books.now(), self._before
        is_counted = self._handler is not None
        return CompileProof(
            graphs=now.graphs - before.graphs,
            frames_left_eager=now.frames_left_eager - before.frames_left_eager,
            breaks={
                reason: count - before.breaks.get(reason, 0)
                for reason, count in now.breaks.items()
                if count > before.breaks.get(reason, 0)
            },
            recompiles=sum(map(_is_recompile, self._compiles)) if is_counted else None,
            recompile_reasons=tuple(
                reason for reason in now.guards if now.guards[reason] > before.guards.get(reason, 0)
            ),
            compile_s=self._spent_ns / _NS_PER_S if is_counted else None,
            recorded_inputs=now.recorded_inputs - before.recorded_inputs,
            graphs_not_recorded=now.graphs_not_recorded - before.graphs_not_recorded,
        )

    def _on_start(self, event: Any) -> None:
        self._since_ns = time.perf_counter_ns()
        if event.callback_trigger.name == "DYNAMO":
            self._compiles.append(event.compile_id)

    def _on_end(self, event: Any) -> None:  # noqa: ARG002 - the compiler decides what it passes
        if self._since_ns is not None:
            self._spent_ns += time.perf_counter_ns() - self._since_ns
        self._since_ns = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Books:
    """The compiler's running totals at one moment."""

    graphs: int
    frames_left_eager: int
    breaks: Mapping[str, int]
    guards: Mapping[str, int]
    recorded_inputs: int
    graphs_not_recorded: int

    @classmethod
    def now(cls) -> "_Books":
        counters = dynamo_books.counters
        frames = counters["frames"]
        guards: dict[str, int] = {}
        for failures in dynamo_books.guard_failures.values():
            for failure in failures:
                reason = _reason(failure)
                guards[reason] = guards.get(reason, 0) + 1
        breaks: dict[str, int] = {}
        for text, count in counters["graph_break"].items():
            reason = _first_line(text)
            breaks[reason] = breaks.get(reason, 0) + count
        return cls(
            graphs=counters["stats"]["unique_graphs"],
            frames_left_eager=frames["total"] - frames["ok"],
            breaks=breaks,
            guards=guards,
            recorded_inputs=counters["inductor"]["cudagraph_recorded_non_static_inputs"],
            graphs_not_recorded=counters["inductor"]["cudagraph_skips"],
        )


def _callback_handler() -> Any | None:
    """The compiler's own announcements of start and end, in torch versions that name the frame."""
    callback = getattr(torch._dynamo, "callback", None)
    if callback is None or not hasattr(callback, "CallbackArgs"):
        return None
    return callback.callback_handler


def _is_recompile(compile_id: str) -> bool:
    """Read "frame/attempt": attempts count from 0."""
    return not compile_id.endswith("/0")


def _first_line(text: str) -> str:
    return text.partition("\n")[0].strip()


def _reason(failure: str) -> str:
    """The failed expectation alone, without the cache entry before it and the code after it."""
    _, _, expectation = _first_line(failure).partition(": ")
    return expectation.partition("  #")[0].strip() or _first_line(failure)
