"""Attention in the windows of VRT at full resolution: plain PyTorch, and fused in several cuts.

    python benchmarks/deblur_attention.py --output FILE.json [--limit-s 85]

Volumes are one clip of six frames of 256x256 in bfloat16, with 6 heads of 16 or 20 channels;
windows are shifted and masked. Every cut of the kernels (tiles, warps, stages, windows a program)
is held against float64 on a small volume first; then forward and backward are timed apart, in
turns, by CUDA events, medians. Floors are the bytes of the formulas at the rate of a plain copy,
and the powers at 16 a cycle of each multiprocessor. Kernels are compiled by several processes
beforehand. The table of all cuts is printed last, the fastest of each shape marked. `--smoke` runs
the plain version on a CPU, tiny, where only the exactness means something.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bev_splat import copy_bytes_per_s, measure
from pitstop.kernels import has_triton
from pitstop.kernels.gate import FORMULAS as GATE
from pitstop.kernels.gate import gate_fused, gate_reference
from pitstop.kernels.window_attention import FORMULAS, REFERENCE, Windows, shift_regions
from pitstop.workloads.deblur.model.blocks import relative_position_index
from progress import say, write

REPEATS = 10
POWERS_A_CYCLE = 16
CYCLES_PER_S = 1.755e9
"""What an H200 runs at under load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One operation on one volume."""

    window: tuple[int, int, int]
    shift: tuple[int, int, int]
    channels: int
    mutual: bool = False
    volume: tuple[int, int, int] = (6, 256, 256)
    heads: int = 6

    @property
    def name(self) -> str:
        """Say what it is."""
        kind = "mutual" if self.mutual else "self"
        return f"{kind} {self.tokens}x{self.channels}"

    @property
    def tokens(self) -> int:
        """Tokens that attend to one another."""
        depth, height, width = self.window
        return (1 if self.mutual else depth) * height * width

    @property
    def sizes(self) -> dict[str, int]:
        """What the formulas count."""
        depth, height, width = self.volume
        tokens = self.window[0] * self.window[1] * self.window[2]
        windows = depth * height * width // tokens
        return {
            "num_windows": windows,
            "num_tokens": tokens,
            "channels": self.heads * self.channels,
        }


SHAPES = (
    Shape(window=(2, 8, 8), shift=(1, 4, 4), channels=16),
    Shape(window=(2, 8, 8), shift=(1, 4, 4), channels=16, mutual=True),
    Shape(window=(6, 8, 8), shift=(0, 4, 4), channels=16),
    Shape(window=(6, 8, 8), shift=(0, 4, 4), channels=20),
    Shape(window=(1, 8, 8), shift=(0, 4, 4), channels=20),
)
SMALL = (6, 16, 24)

# Queries and keys of a tile, programs, warps, stages, registers of a thread.
Cut = tuple[int, ...]
FORWARD: dict[str, tuple[Cut, ...]] = {
    "self 128x16": (
        (64, 128, 1056, 4, 1),
        (64, 128, 1056, 4, 2, 128),
        (64, 128, 1056, 4, 3),
        (128, 128, 528, 8, 2),
        (64, 64, 1584, 4, 3, 128),
    ),
    "mutual 64x16": ((64, 64, 1584, 4, 2), (64, 64, 1584, 4, 4), (64, 64, 3168, 4, 3)),
    "self 384x16": ((64, 64, 528, 4, 1), (64, 128, 528, 4, 1), (64, 64, 1056, 4, 1, 128)),
    "self 384x20": ((64, 64, 1056, 4, 1, 128), (64, 128, 528, 4, 1), (64, 64, 528, 4, 2)),
    "self 64x20": ((64, 64, 1584, 4, 1), (64, 64, 1584, 4, 3), (64, 64, 1584, 4, 2, 96)),
}
# All gradients, or those of queries, keys and values; then the bias' where it is a kernel apart.
TILES: Cut = (64, 64, 528, 4, 2)
BIAS: Cut = (64, 64, 1056, 4, 2, 128)
BACKWARD: dict[str, tuple[tuple[Cut, Cut], ...]] = {
    "self 128x16": (
        ((64, 128, 264, 8, 1), BIAS),
        ((64, 128, 264, 8, 2), BIAS),
        ((128, 128, 264, 8, 1), BIAS),
        ((64, 64, 528, 4, 1), BIAS),
    ),
    "mutual 64x16": (((64, 64, 1584, 4, 1), BIAS), ((64, 64, 1584, 4, 3), BIAS)),
    "self 384x16": (
        (TILES, BIAS),
        ((64, 64, 528, 4, 3), BIAS),
        ((64, 64, 1056, 4, 2, 168), BIAS),
        ((32, 64, 1056, 4, 2, 128), BIAS),
        ((64, 128, 264, 8, 2), BIAS),
        (TILES, (64, 64, 1056, 4, 1)),
        (TILES, (128, 64, 528, 4, 2)),
        (TILES, (64, 64, 2112, 4, 3, 128)),
    ),
    "self 384x20": (
        (TILES, BIAS),
        ((64, 64, 528, 4, 1), BIAS),
        ((64, 64, 792, 4, 2, 200), BIAS),
        (TILES, (128, 64, 528, 4, 2)),
        (TILES, (64, 64, 1056, 4, 2)),
    ),
    "self 64x20": (
        ((64, 64, 792, 4, 1, 168), BIAS),
        ((64, 64, 528, 4, 2, 168), BIAS),
        ((64, 64, 528, 4, 1), BIAS),
    ),
}


class Case:
    """Inputs of a shape on a device."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.shape = shape
        width = shape.heads * shape.channels
        self.qkv = torch.randn(1, *shape.volume, 3 * width, device=device).to(dtype)
        self.grad = torch.randn(1, *shape.volume, width, device=device).to(dtype)
        self.index = relative_position_index(shape.window).to(device)
        self.windows = Windows(shape.window, shape.shift)
        self.regions = shift_regions(shape.volume, self.windows, device=device)
        places = (2 * shape.window[0] - 1) * 15 * 15
        self.table = None if shape.mutual else torch.randn(places, shape.heads, device=device)
        self.out = torch.full_like(self.grad, float("nan"))
        tokens = shape.heads * self.grad[..., 0].numel()
        self.rows = torch.empty(tokens, dtype=torch.float32, device=device)
        self.grads = (torch.full_like(self.qkv, float("nan")), self._like_table())

    def _like_table(self) -> Tensor | None:
        return None if self.table is None else torch.full_like(self.table, float("nan"))

    def cut(self) -> Any:
        """How the kernels cut it."""
        from pitstop.kernels.window_attention_triton import Cut as Windowing

        shape = self.shape
        return Windowing(
            size=shape.window,
            shift=shape.shift,
            masked=True,
            num_heads=shape.heads,
            table_window=shape.window,
            mutual=shape.mutual,
        )

    def forward(self, launch: Cut | None) -> None:
        """Run the fused forward pass."""
        from pitstop.kernels.window_attention_triton import attend

        how = None if launch is None else launch_of(launch)
        attend(self.qkv, self.table, self.out, self.rows, self.cut(), launch=how)

    def backward(self, plan: tuple[Cut, Cut] | None) -> None:
        """Run the fused backward pass."""
        from pitstop.kernels.window_attention_triton import Plan, attend_backward

        how = None
        if plan is not None:
            backward, bias = (launch_of(cut) for cut in plan)
            how = Plan(backward, backward, bias)
        given = (self.grad, self.qkv, self.table, self.out, self.rows, self.cut(), self.grads)
        attend_backward(*given, plan=how)

    def plain(self, *, wide: bool) -> list[Tensor]:
        """Result and gradients of the reference, in float64 or as they are."""
        leaves = [part for part in (self.qkv, self.table) if part is not None]
        leaves = [(part.double() if wide else part).requires_grad_() for part in leaves]
        how = {"windows": self.windows, "num_heads": self.shape.heads}
        if self.shape.mutual:
            out = REFERENCE.mutual_attention(*leaves, self.regions, **how)
        else:
            out = REFERENCE.self_attention(*leaves, self.index, self.regions, **how)
        grad = self.grad.double() if wide else self.grad
        found = [out.detach(), *torch.autograd.grad(out, leaves, grad)]
        for leaf in leaves:
            leaf.requires_grad_(False)  # noqa: FBT003 - torch names it
        return found


def error_of(mine: Tensor, true: Tensor) -> float:
    """Norm of the error over that of what is right; infinite where something is not finite."""
    found = float((mine.double() - true).norm() / true.norm())
    return found if found == found else float("inf")


def small(shape: Shape) -> Shape:
    """The same operation on a volume that float64 is quick on."""
    return replace(shape, volume=SMALL)


def jobs() -> Iterator[tuple[Shape, str, Any]]:
    """All cuts of all shapes, what is shipped first."""
    for shape in SHAPES:
        for kind, cuts in (("forward", FORWARD), ("backward", BACKWARD)):
            yield shape, kind, None
            for cut in cuts[shape.name]:
                yield shape, kind, cut


def launch_of(cut: Cut) -> Any:
    """A launch as the kernels take it."""
    from pitstop.kernels.window_attention_triton import Launch

    queries, keys, programs, warps, stages, *registers = cut
    return Launch(queries, keys, programs, warps, stages, *registers)


def compile_one(number: int) -> None:
    """Run one kernel once, so that it lies compiled on disk."""
    shape, kind, cut = list(jobs())[number]
    case = Case(small(shape), torch.device("cuda"), torch.bfloat16)
    case.forward(None)
    case.forward(cut) if kind == "forward" else case.backward(cut)
    torch.cuda.synchronize()


def compile_all(workers: int) -> list[str]:
    """Compile every cut in a process of its own: one that crashes the compiler is a result."""

    def failure(number: int) -> str | None:
        command = [sys.executable, __file__, "--compile", str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        shape, kind, cut = list(jobs())[number]
        said = (done.stderr.strip().splitlines() or ["no word"])[-1][:200]
        return f"{shape.name} {kind} {cut}: {said}" if done.returncode else None

    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(failure, range(len(list(jobs()))))
        return [line for line in found if line is not None]


def check(shape: Shape, failed: list[str]) -> dict[str, dict[str, list[float]]]:
    """Errors of every cut against float64, beside those of the plain version."""
    case = Case(small(shape), torch.device("cuda"), torch.bfloat16)
    right = case.plain(wide=True)
    errors: dict[str, dict[str, list[float]]] = {"forward": {}, "backward": {}}
    plain = [error_of(mine, true) for mine, true in zip(case.plain(wide=False), right, strict=True)]
    errors["forward"]["plain"], errors["backward"]["plain"] = plain[:1], plain[1:]
    for one, kind, cut in jobs():
        if one != shape or f"{shape.name} {kind} {cut}" in " ".join(failed):
            continue
        if kind == "forward":
            case.out.fill_(float("nan"))
            case.forward(cut)
            errors[kind][str(cut)] = [error_of(case.out, right[0])]
            continue
        for part in case.grads:
            if part is not None:
                part.fill_(float("nan"))
        case.backward(cut)
        pairs = zip((part for part in case.grads if part is not None), right[1:], strict=True)
        errors[kind][str(cut)] = [error_of(mine, true) for mine, true in pairs]
    return errors


def floors_ms(shape: Shape, bytes_per_s: float, num_processors: int) -> dict[str, dict[str, float]]:
    """Least time by bytes and by powers."""
    bias = {} if shape.mutual else {"bias_bytes": 15 * 15 * 11 * shape.heads * 4}
    forward = FORMULAS["mutual_attention" if shape.mutual else "self_attention"]
    moved = {
        "forward": forward.num_bytes(**shape.sizes, itemsize=2, **bias),
        "backward": FORMULAS["self_attention_backward"].num_bytes(
            **shape.sizes, itemsize=2, bias_bytes=0
        ),
    }
    scores = shape.volume[0] * shape.volume[1] * shape.volume[2] * shape.tokens * shape.heads
    powers_ms = scores / (num_processors * POWERS_A_CYCLE * CYCLES_PER_S) * 1e3
    return {
        kind: {"bytes_ms": count / bytes_per_s * 1e3, "powers_ms": powers_ms}
        for kind, count in moved.items()
    }


def time_shape(
    shape: Shape, errors: dict[str, dict[str, list[float]]]
) -> dict[str, dict[str, float]]:
    """Milliseconds of every cut that is right; plain is forward and backward together."""
    case = Case(shape, torch.device("cuda"), torch.bfloat16)
    found: dict[str, dict[str, float]] = {}
    for kind in ("forward", "backward"):
        known = errors[kind]["plain"]
        runs = {}
        for one, its_kind, cut in jobs():
            mine = errors[kind].get(str(cut))
            right = mine is not None and all(
                error <= 1.25 * plain + 1e-3 for error, plain in zip(mine, known, strict=True)
            )
            if one == shape and its_kind == kind and right:
                runs[str(cut)] = lambda cut=cut, kind=kind: (
                    case.forward(cut) if kind == "forward" else case.backward(cut)
                )
        times = measure(runs, sweep=False, repeats=REPEATS)
        found[kind] = {name: statistics.median(values) for name, values in times.items()}
    times = measure({"plain": lambda: case.plain(wide=False)}, sweep=False, repeats=3)
    found["plain"] = {"both": statistics.median(times["plain"])}
    return found


def time_gate(bytes_per_s: float) -> dict[str, dict[str, float]]:
    """Milliseconds of the gate of a feed-forward layer, forward and backward, beside its bytes."""
    joint = torch.randn(6 * 256 * 256, 384, device="cuda").bfloat16().requires_grad_()
    grad = torch.randn(6 * 256 * 256, 192, device="cuda").bfloat16()
    outs = {"plain": gate_reference(joint), "fused": gate_fused(joint)}
    versions = {"plain": gate_reference, "fused": gate_fused}

    def backward(name: str) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outs[name], joint, grad, retain_graph=True)

    runs: dict[str, Callable[[], object]] = {}
    for name, version in versions.items():
        runs[f"{name} forward"] = lambda version=version: version(joint)
        runs[f"{name} backward"] = lambda name=name: backward(name)
    times = measure(runs, sweep=False, repeats=REPEATS)
    sizes = {"tokens": 6 * 256 * 256, "channels": 192, "itemsize": 2}
    floors = {
        kind: GATE[formula].num_bytes(**sizes) / bytes_per_s * 1e3
        for kind, formula in (("forward", "gate"), ("backward", "gate_backward"))
    }
    return {
        "ms": {name: statistics.median(found) for name, found in times.items()},
        "floors": floors,
    }


def table(report: dict[str, Any]) -> str:
    """All cuts as lines, the fastest of each shape marked."""
    lines = [f"{'shape':14} {'pass':9} {'ms':>8} {'bytes':>6} {'powers':>6} error      cut"]
    for name, row in report["shapes"].items():
        lines.append(f"{name:14} {'plain':9} {row['ms']['plain']['both']:8.3f}")
        for kind in ("forward", "backward"):
            times, floor = row["ms"][kind], row["floors"][kind]
            best = min(times.values(), default=0.0)
            for cut, errors in row["errors"][kind].items():
                ms = times.get(cut)
                shown = " not timed" if ms is None else f"{ms:8.3f} {ms / floor['bytes_ms']:5.1f}x"
                powers = "" if ms is None else f"{ms / floor['powers_ms']:5.1f}x"
                mark = " <" if ms == best else ""
                worst = max(errors)
                lines.append(f"{name:14} {kind:9} {shown:>15} {powers:>6} {worst:.1e}  {cut}{mark}")
    if "gate" in report:
        lines.append(f"gate 192: {json.dumps(report['gate'])}")
    return "\n".join(lines)


def smoke() -> dict[str, Any]:
    """The plain version on a CPU, where only the exactness means something."""
    shape = replace(SHAPES[0], volume=(2, 8, 16))
    case = Case(shape, torch.device("cpu"), torch.float32)
    pairs = zip(case.plain(wide=False), case.plain(wide=True), strict=True)
    return {"errors": [error_of(mine, true) for mine, true in pairs]}


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--compile", type=int, help="Of all cuts, compile this one alone.")
    parser.add_argument("--limit-s", type=float, default=85.0)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.compile is not None:
        compile_one(args.compile)
        return
    if not args.smoke and not (torch.cuda.is_available() and has_triton()):
        parser.error("needs a CUDA device and Triton; --smoke runs without")
    report: dict[str, Any] = {
        "what": "window attention on one clip of 6x256x256, bfloat16, shifted",
        "hardware": "CPU" if args.smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    if args.smoke:
        write(report | smoke(), args.output)
        return
    until = time.monotonic() + args.limit_s
    failed = compile_all(min(len(os.sched_getaffinity(0)) // 2 or 1, 8))
    say(f"compiled, {until - time.monotonic():.0f} s left; failed: {failed}")
    bytes_per_s = copy_bytes_per_s()
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    report |= {"copy_bytes_per_s": bytes_per_s, "failed": failed, "shapes": {}}
    report["gate"] = time_gate(bytes_per_s)
    for shape in SHAPES:
        if time.monotonic() > until:
            say(f"no time for {shape.name}")
            break
        errors = check(shape, failed)
        report["shapes"][shape.name] = {
            "floors": floors_ms(shape, bytes_per_s, processors),
            "errors": errors,
            "ms": time_shape(shape, errors),
        }
        write(report, args.output)
        say(f"{shape.name} done, {until - time.monotonic():.0f} s left")
    print(table(report))


if __name__ == "__main__":
    main()
