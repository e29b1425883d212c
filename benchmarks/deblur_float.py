"""VRT in TF32 and in float32: the authors' code beside ours, one training step, taking turns.

    python benchmarks/deblur_float.py --output FILE.json [--authors CHECKOUT] [--limit-s 150]

As `deblur_vrt.py`, which it shares most with, for numbers of four bytes: variants of ours are
recorded as one CUDA graph each, and each takes turns with the authors' code in the same precision,
with one set of weights. Only one of ours is in memory at a time. Kernels are compiled by several
processes beforehand, piece by piece. Errors of the output and of all gradients are taken against
float64 on a smaller clip, as multiples of the error that the reference path has in the same
precision. What fails is a result, and results are written after every row; no variant is begun
after `--limit-s`. `--smoke` runs a small network on a CPU.
"""

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deblur_vrt import (
    SIDE,
    Variant,
    authors_network,
    clips,
    compared,
    error,
    launches,
    peak,
    recompute,
    recorded,
    step_of,
    timed_ms,
    trained_like,
)
from pitstop.kernels import window_attention
from pitstop.workloads.deblur.model.blocks import BlockGroup, BlockShape
from pitstop.workloads.deblur.model.vrt import VRT, VRT_GOPRO, VRT_SMALL, VRTSettings
from progress import say, write

CHECKED_SIDE = 128
TURNS = 3
COMPILE_LIMIT_S = 75.0


@dataclass(frozen=True, kw_only=True)
class Way:
    """One of ours: the precision and what is switched on."""

    name: str
    precision: str
    halves: bool = False
    """Whether attention multiplies in float16 in place of TF32."""
    search: bool = False
    """Whether cuDNN searches for the fastest convolutions."""


WAYS = (
    Way(name="fused", precision="fp32"),
    Way(name="fused, attention by halves", precision="tf32", halves=True),
    Way(name="fused", precision="tf32"),
)
"""In the order of what is wanted first."""

PIECES = ("mutual 96", "whole 96", "whole 120", "single 120", "no blocks")


@contextmanager
def switched(way: Way) -> Iterator[None]:
    """Set what is global to a way, and back."""
    before = window_attention.HALVES_FOR_TF32
    searched = torch.backends.cudnn.benchmark
    torch.backends.cuda.matmul.allow_tf32 = way.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = way.precision == "tf32"
    window_attention.HALVES_FOR_TF32 = way.halves
    torch.backends.cudnn.benchmark = way.search
    try:
        yield
    finally:
        window_attention.HALVES_FOR_TF32 = before
        torch.backends.cudnn.benchmark = searched


def run_piece(name: str, device: torch.device, *, smoke: bool) -> None:
    """Forward and backward of a part of the network, large and small, so that it lies compiled."""
    torch.manual_seed(0)
    settings: VRTSettings = {**(VRT_SMALL if smoke else VRT_GOPRO), "drop_path_rate": 0.0}
    if name == "no blocks":
        settings["depths"] = (0,) * 11
        settings["depths"] = settings["depths"][: len(settings.get("embed_dims", ()))]
        model = VRT(kernels="auto", **settings)
        clip, sharp = clips(device, smoke=smoke)
        (model.to(device)(clip) - sharp).square().mean().backward()
        return
    kind, width = name.split()
    window = {"mutual": (2, 8, 8), "whole": (6, 8, 8), "single": (1, 8, 8)}[kind]
    shape = BlockShape(
        dim=24 if smoke else int(width),
        num_heads=6,
        window=window,
        mutual=kind == "mutual",
        mlp_ratio=2.0,
        qkv_bias=True,
        kernels="auto",
    )
    group = BlockGroup(shape, drop_rates=[0.0, 0.0]).to(device)
    for side in (8, 16) if smoke else (32, 256):
        x = torch.randn(1, 6, side, side, shape.dim, device=device, requires_grad=True)
        group(x).square().mean().backward()


def jobs() -> list[tuple[Way, str]]:
    """Pieces that are compiled in processes of their own."""
    ways = [way for way in WAYS if not (way.search or way.halves)]
    return list(itertools.product(ways, PIECES))


def compile_all(*, smoke: bool) -> list[str]:
    """Run every piece in a process of its own; a compiler that crashes is a result."""

    def failure(number: int) -> str | None:
        command = [sys.executable, __file__, "--piece", str(number), *["--smoke"] * smoke]
        way, piece = jobs()[number]
        began_s = time.monotonic()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=COMPILE_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return f"{way.name} {way.precision}, {piece}: not within {COMPILE_LIMIT_S:.0f} s"
        say(f"{way.name} {way.precision}, {piece}: {time.monotonic() - began_s:.0f} s")
        said = (done.stderr.strip().splitlines() or ["no word"])[-1][:300]
        return f"{way.name} {way.precision}, {piece}: {said}" if done.returncode else None

    workers = min(len(os.sched_getaffinity(0)), len(jobs()))
    numbers = range(2 if smoke else len(jobs()))
    with ThreadPoolExecutor(workers) as pool:
        return [line for line in pool.map(failure, numbers) if line is not None]


def gradients_of(model: nn.Module, clip: Tensor, sharp: Tensor) -> dict[str, Tensor]:
    """Output and gradients of all parameters, on the host, in float64."""
    model.zero_grad(set_to_none=True)
    restored = model(clip)
    loss = ((restored - sharp).square() + 1e-9).sqrt().mean()
    loss.backward()
    found = {
        name: parameter.grad.double().cpu()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return {**found, "output": restored.detach().double().cpu()}


def exactness(
    build: Callable[[str], nn.Module], device: torch.device, *, smoke: bool
) -> list[dict[str, Any]]:
    """Errors against float64, as multiples of the reference path's in the same precision."""
    pair = clips(device, smoke=smoke)
    clip, sharp = (part[..., :CHECKED_SIDE, :CHECKED_SIDE].contiguous() for part in pair)
    reference = build("reference")
    recompute(reference)
    exact = gradients_of(reference.double(), clip.double(), sharp.double())
    reference.float()
    fused, rows = build("auto"), []
    for precision in ("tf32", "fp32"):
        plain = Way(name="reference", precision=precision)
        ways = [way for way in WAYS if way.precision == precision and not way.search]
        own: dict[str, float] = {}
        for way in (plain, *ways):
            try:
                with switched(way):
                    model = reference if way is plain else fused
                    found = gradients_of(model, clip, sharp)
            except Exception as failure:  # noqa: BLE001 - what fails is a result
                rows.append(failed(way, failure))
                continue
            squares = {name: error(found[name], exact[name]) ** 2 for name in found}
            own = own or squares
            row = {"name": way.name, "precision": precision, "clip": list(clip.shape)}
            rows.append(row | compared(squares, own, inputs=1))
            say(str(rows[-1]))
    return rows


def failed(way: Way, failure: BaseException) -> dict[str, Any]:
    """What is written of a way that did not run."""
    said = (str(failure).splitlines() or [type(failure).__name__])[0][:300]
    say(f"{way.name} {way.precision} failed: {said}")
    return {"name": way.name, "precision": way.precision, "outcome": said}


class Turns:
    """Ours against theirs, a step each in turn."""

    def __init__(self, build: Callable[[str], nn.Module], theirs: nn.Module | None) -> None:
        self.build, self.theirs = build, theirs
        self.pair: tuple[Tensor, Tensor] | None = None
        self.base: dict[str, Variant] = {}

    def base_of(self, precision: str) -> Variant | None:
        """The authors' code in a precision, warm."""
        assert self.pair is not None
        if self.theirs is None:
            return None
        if precision not in self.base:
            one = Variant(name="authors, recomputed", precision=precision, model=self.theirs)
            one.run = step_of(one, optimizer_of(one, self.pair[0]), *self.pair)
            peak(one)
            self.base[precision] = one
        return self.base[precision]

    def row(self, way: Way, *, turns: int) -> dict[str, Any]:
        """Measure a way; what it holds on the device is given back."""
        assert self.pair is not None
        clip = self.pair[0]
        one = Variant(name=way.name, precision=way.precision, model=self.build("auto"))
        one.graph = clip.is_cuda
        base = self.base_of(way.precision)
        # Held by this name until the last replay: a graph does not keep what it reads.
        optimizer = optimizer_of(one, clip)
        one.run = step_of(one, optimizer, *self.pair)
        began_s = time.monotonic()
        peak(one)
        if one.graph:
            one.run = recorded(one)
        one.facts["ready_s"] = time.monotonic() - began_s
        their_ms = []
        for _ in range(turns):
            if base is not None:
                their_ms.append(timed_ms(base))
            one.step_ms.append(timed_ms(one))
        ratios = [theirs / mine for theirs, mine in zip(their_ms, one.step_ms, strict=False)]
        states = [part for state in optimizer.state.values() for part in state.values()]
        one.facts |= {
            "states_finite": all(bool(part.isfinite().all()) for part in states),
            "step_ms": statistics.median(one.step_ms),
            "step_ms_range": [min(one.step_ms), max(one.step_ms)],
            "authors_ms": their_ms,
            "authors_peak_gib": base.facts.get("peak_gib") if base is not None else None,
            "times_as_fast": statistics.median(ratios) if ratios else None,
            "ratio_range": [min(ratios), max(ratios)] if ratios else None,
            **(launches(one) if clip.is_cuda else {}),
        }
        return {"name": one.name, "precision": one.precision, **one.facts}


def optimizer_of(one: Variant, clip: Tensor) -> torch.optim.Optimizer:
    """Fused AdamW, one that a graph can record where it will be recorded."""
    parameters = one.model.parameters()
    return torch.optim.AdamW(parameters, lr=1e-6, fused=clip.is_cuda, capturable=one.graph)


def given_back() -> None:
    """Free what nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def options_of() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--authors", type=Path)
    parser.add_argument("--only", nargs="+", help="Ways, as 'tf32: fused'.")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--limit-s", type=float, default=150.0)
    parser.add_argument("--no-check", action="store_true", help="Leave the errors out.")
    parser.add_argument("--no-compile", action="store_true", help="Compile as kernels are met.")
    parser.add_argument("--piece", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--smoke", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Measure, and write down after every row."""
    options = options_of()
    until_s = time.monotonic() + options.limit_s
    device = torch.device("cpu" if options.smoke else "cuda")
    if options.piece is not None:
        way, piece = jobs()[options.piece]
        with switched(way):
            run_piece(piece, device, smoke=options.smoke)
        return
    report: dict[str, Any] = {
        "what": f"one training step of VRT, 6x{SIDE}x{SIDE}, batch 1, in TF32 and in float32",
        "hardware": "CPU" if options.smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": [],
    }
    if not options.no_compile:
        report["not_compiled"] = compile_all(smoke=options.smoke)
        say(f"compiled, {until_s - time.monotonic():.0f} s left: {report['not_compiled']}")
    settings = {**(VRT_SMALL if options.smoke else VRT_GOPRO), "drop_path_rate": 0.0}
    weights = trained_like(VRT(kernels="reference", **settings))

    def loaded(model: nn.Module) -> nn.Module:
        model.load_state_dict(weights, strict=False)
        return model.to(device).train()

    def build(kernels: Any) -> nn.Module:
        return loaded(VRT(kernels=kernels, **settings))

    if not options.no_check:
        try:
            report["errors"] = exactness(build, device, smoke=options.smoke)
        except Exception as failure:  # noqa: BLE001 - what fails is a result
            report["errors"] = str(failure).splitlines()[:1]
        write(report, options.output)
        given_back()
        say(f"errors known, {until_s - time.monotonic():.0f} s left")
    theirs = None
    if options.authors is not None:
        theirs = loaded(authors_network(options.authors, settings))
    measure_ways(Turns(build, theirs), options, report, until_s)


def measure_ways(
    turns: Turns, options: argparse.Namespace, report: dict[str, Any], until_s: float
) -> None:
    """Every way that there is time for."""
    turns.pair = clips(torch.device("cpu" if options.smoke else "cuda"), smoke=options.smoke)
    for way in WAYS:
        if options.only is not None and f"{way.precision}: {way.name}" not in options.only:
            continue
        if time.monotonic() > until_s:
            report["rows"].append(failed(way, TimeoutError("no time left")))
            continue
        try:
            with switched(way):
                row = turns.row(way, turns=options.turns)
            say(json.dumps({key: row[key] for key in row if key != "kernels_ms"}))
        except Exception as failure:  # noqa: BLE001 - what fails is a result
            row = failed(way, failure)
        report["rows"].append(row)
        write(report, options.output)
        given_back()
        say(f"{until_s - time.monotonic():.0f} s left")
    write(report, options.output)


if __name__ == "__main__":
    main()
