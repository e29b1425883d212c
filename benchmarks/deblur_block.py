"""The token-wise half of VRT's blocks: each kernel in several cuts, against its floor and float64.

    python benchmarks/deblur_block.py --output FILE.json [--limit-s 85]

Shapes are those of the full-size stages: 6x256x256 tokens of 96 or 120 channels, hidden width twice
that, float32 stream, bfloat16 products. A cut is (tokens, columns, warps, stages[, programs]).
Errors are taken on fewer tokens, against float64, as multiples of what plain PyTorch loses under
autocast. `--smoke` runs a small shape under Triton's interpreter (TRITON_INTERPRET=1).
"""

import argparse
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bev_splat import copy_bytes_per_s, measure
from pitstop.kernels import block
from pitstop.kernels.block import FORMULAS, Layer, Norm
from progress import say, write

TOKENS, FEW_TOKENS, EPS = 6 * 256 * 256, 4096, 1e-5
WIDTHS = (96, 120)
REPEATS = 12

Cut = tuple[int, ...]

CUTS: dict[str, tuple[Cut, ...]] = {
    "norm_project": (
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (128, 64, 4, 2),
        (64, 32, 4, 3),
        (64, 128, 4, 1),
    ),
    "project_add": ((64, 64, 4, 2), (64, 128, 4, 2), (64, 64, 4, 1)),
    "project_add_branch": ((64, 128, 4, 2), (64, 64, 4, 2), (64, 64, 4, 1)),
    "norm_backward": (
        (16, 0, 4, 2, 1056),
        (8, 0, 4, 2, 1056),
        (8, 0, 4, 2, 2112),
        (8, 0, 2, 2, 2112),
        (16, 0, 8, 2, 1056),
        (16, 0, 4, 2, 4224),
        (32, 0, 8, 2, 1056),
    ),
    "norm_backward_alone": (
        (16, 0, 4, 2, 1056),
        (8, 0, 4, 2, 1056),
        (8, 0, 4, 2, 2112),
        (8, 0, 2, 2, 2112),
        (16, 0, 8, 2, 1056),
    ),
    "feed_forward_add": (
        (64, 64, 4, 2),
        (64, 64, 4, 1),
        (64, 32, 4, 1),
        (64, 32, 4, 2),
        (128, 64, 8, 2),
        (128, 64, 8, 1),
    ),
    "feed_forward_hidden": (
        (64, 32, 4, 2),
        (64, 32, 4, 1),
        (64, 32, 4, 3),
        (64, 64, 4, 1),
        (64, 64, 4, 2),
        (128, 32, 8, 2),
        (128, 32, 4, 1),
        (128, 64, 8, 1),
    ),
    "norm_project_backward": (),
    "project_add_backward": (),
    "feed_forward_add_backward": (),
}


class Case:
    """Inputs and outputs of all kernels at one width."""

    def __init__(self, width: int, tokens: int, device: torch.device, kind: torch.dtype) -> None:
        torch.manual_seed(0)
        self.width, self.tokens, self.kind = width, tokens, kind

        def draw(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
            return (scale * torch.randn(shape, device=device)).to(dtype)

        thin = width**-0.5
        self.x, self.grad = draw(tokens, width), draw(tokens, width)
        self.norm = Norm(1 + draw(width, scale=0.1), draw(width, scale=0.1), EPS)
        self.qkv = Layer(draw(3 * width, width, scale=thin), draw(3 * width, scale=0.1))
        self.proj = Layer(draw(width, width, scale=thin), draw(width, scale=0.1))
        self.layers = [
            Layer(draw(2 * width, width, scale=thin), draw(2 * width, scale=0.1)),
            Layer(draw(2 * width, width, scale=thin), draw(2 * width, scale=0.1)),
            Layer(draw(width, 2 * width, scale=thin), draw(width, scale=0.1)),
        ]
        self.branch = draw(tokens, width, dtype=kind)
        self.qkv_grad = draw(tokens, 3 * width, dtype=kind)
        self.out = torch.empty_like(self.x)
        self.branch_out = torch.empty_like(self.branch)
        self.qkv_out = torch.empty_like(self.qkv_grad)
        self.outs = (
            torch.empty_like(self.branch),
            draw(tokens, 4 * width, dtype=kind),
            draw(tokens, width + 8, dtype=kind),
            draw(tokens, 2 * width + 8, dtype=kind),
        )

    def run(self, name: str, cut: Cut | None) -> tuple[Tensor, ...]:
        """Run one kernel, or a whole backward pass; gives what it wrote."""
        from pitstop.kernels import block_triton as kernels

        how: dict[str, Any] = {"launch": None if cut is None else kernels.Launch(*cut)}
        norm = kernels.Norm(*self.norm)
        qkv, proj, *layers = (
            kernels.Projection(one.weight.to(self.kind), one.bias)
            for one in (self.qkv, self.proj, *self.layers)
        )
        branch, _, operand, _ = self.outs
        weights, biases = [one.weight for one in layers], [one.bias for one in layers]
        runs: dict[str, Callable[[], object]] = {
            "norm_project": lambda: kernels.project(self.x, self.qkv_out, qkv, norm=norm, **how),
            "project_add": lambda: kernels.project(
                self.branch, self.out, proj, residual=self.x, **how
            ),
            "project_add_branch": lambda: kernels.project(
                self.grad,
                self.branch_out,
                proj._replace(bias=None),
                transposed=True,
                copy=branch,
                summed=True,
                **how,
            ),
            "norm_backward": lambda: kernels.norm_backward(
                [self.branch], self.x, norm, self.grad, self.out, [operand], **how
            ),
            "norm_backward_alone": lambda: kernels.norm_backward(
                [self.branch], self.x, norm, self.grad, self.out, **how
            ),
            "feed_forward_add": lambda: kernels.feed_forward(
                self.x, self.out, norm, layers, None, **how
            ),
            "feed_forward_hidden": lambda: kernels.feed_forward_hidden(
                self.grad, self.x, norm, layers, None, self.outs, **how
            ),
            "norm_project_backward": lambda: torch.ops.pitstop.norm_project_backward(
                [self.qkv_grad], self.grad, self.x, *self.norm, [qkv.weight], None, [0] * 6
            ),
            "project_add_backward": lambda: torch.ops.pitstop.project_add_backward(
                self.grad, self.branch, proj.weight, None
            ),
            "feed_forward_add_backward": lambda: torch.ops.pitstop.feed_forward_add_backward(
                self.grad, self.x, *self.norm, weights, biases, None
            ),
        }
        given = runs[name]()
        results = {
            "norm_project": (self.qkv_out,),
            "project_add": (self.out,),
            "feed_forward_add": (self.out,),
        }
        return results.get(name, given)  # type: ignore[return-value]

    def plain(self, name: str, *, wide: bool) -> tuple[Tensor, ...]:
        """Result, or gradients, by plain PyTorch: in float64, or under autocast."""
        dtype = torch.float64 if wide else torch.float32
        x, weight, bias = (
            part.to(dtype).requires_grad_() for part in (self.x, self.norm.weight, self.norm.bias)
        )
        branch = self.branch.to(dtype if wide else self.kind).requires_grad_()
        qkv, proj, *layers = (
            Layer(*(part.to(dtype).requires_grad_() for part in one if part is not None))
            for one in (self.qkv, self.proj, *self.layers)
        )
        norm = Norm(weight, bias, EPS)
        with torch.autocast(x.device.type, self.kind, enabled=not wide):
            if name.startswith("norm_project"):
                through, out = block.norm_project_reference(x, norm, [qkv])
                leaves, grads = [x, weight, bias, *qkv], (self.grad, self.qkv_grad)
                outs = (through, out)
            elif name.startswith("project_add"):
                out = block.project_add_reference(x, branch, proj, None)
                leaves, grads, outs = [branch, *proj], (self.grad,), (out,)
            else:
                out = block.feed_forward_add_reference(x, norm, layers, None)
                flat = [part for layer in layers for part in layer]
                leaves, grads, outs = [x, weight, bias, *flat], (self.grad,), (out,)
        if not name.endswith("backward"):
            return (out.detach(),)
        given = [grad.to(one.dtype) for grad, one in zip(grads, outs, strict=True)]
        return torch.autograd.grad(outs, leaves, given)


CHECKED = ("norm_project", "project_add", "feed_forward_add")


def error_of(mine: Tensor, true: Tensor) -> float:
    """Norm of the error over that of what is right; infinite where something is not finite."""
    found = float((mine.detach().double() - true.double()).norm() / true.double().norm())
    return found if found == found else float("inf")


def like_plain(name: str, found: tuple[Tensor, ...]) -> list[Tensor]:
    """Gradients in the order in which plain PyTorch gives them."""
    if name == "project_add_backward":
        return list(found)
    stream, norm, *layers = found
    if name.startswith("feed_forward"):
        weight, bias, *back = layers
        halves = zip(weight.chunk(2), bias.chunk(2), strict=True)
        layers = [part for half in halves for part in half] + back
    return [stream, *norm.chunk(2), *layers]


def jobs() -> Iterator[tuple[int, str, Cut | None]]:
    """All cuts at all widths, what is shipped first."""
    for width, (name, cuts) in itertools.product(WIDTHS, CUTS.items()):
        for cut in (None, *cuts):
            yield width, name, cut


def compile_some(part: list[tuple[int, str, Cut | None]]) -> list[str]:
    """Run kernels once, in a process of its own, so that they lie compiled on disk."""
    failed = []
    cases = {width: Case(width, 512, torch.device("cuda"), torch.bfloat16) for width in WIDTHS}
    for width, name, cut in part:
        try:
            cases[width].run(name, cut)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - a cut that does not compile is a result
            failed.append(f"{width} {name} {cut}: {str(error)[:200]}")
    return failed


def compile_all(workers: int) -> list[str]:
    """Compile all kernels by several processes."""
    parts = [list(itertools.islice(jobs(), first, None, workers)) for first in range(workers)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return [line for lines in pool.map(compile_some, parts) for line in lines]


def errors_at(width: int, device: torch.device, skipped: str = "") -> dict[str, dict[str, float]]:
    """The worst error of each cut over that of plain PyTorch."""
    # The interpreter multiplies no bfloat16.
    few, kind = (FEW_TOKENS, torch.bfloat16) if device.type == "cuda" else (96, torch.float16)
    case = Case(width, few, device, kind)
    found: dict[str, dict[str, float]] = {}
    for name in (*CHECKED, *(f"{one}_backward" for one in CHECKED)):
        right, usual = case.plain(name, wide=True), case.plain(name, wide=False)
        known = [error_of(*pair) for pair in zip(usual, right, strict=True)]
        found[name] = {}
        for cut in (None, *CUTS[name]):
            if f"{width} {name} {cut}:" in skipped:
                continue
            for out in (case.out, case.branch_out, case.qkv_out):
                out.fill_(float("nan"))
            mine = list(case.run(name, cut))
            mine = like_plain(name, tuple(mine)) if name.endswith("backward") else mine
            errors = [error_of(*pair) for pair in zip(mine, right, strict=True)]
            ratios = [error / max(plain, 1e-6) for error, plain in zip(errors, known, strict=True)]
            found[name][str(cut)] = max(ratios)
    return found


def times_at(width: int, bytes_per_s: float, skipped: str) -> dict[str, dict[str, Any]]:
    """Milliseconds of each cut, and the floor of the kernel."""
    case = Case(width, TOKENS, torch.device("cuda"), torch.bfloat16)
    found: dict[str, dict[str, Any]] = {}
    for name, cuts in CUTS.items():
        runs: dict[str, Callable[[], object]] = {}
        for cut in (None, *cuts):
            if f"{width} {name} {cut}:" not in skipped:
                runs[str(cut)] = lambda name=name, cut=cut: case.run(name, cut)
        times = measure(runs, sweep=False, repeats=REPEATS)
        moved = FORMULAS[name].num_bytes(tokens=TOKENS, channels=width, itemsize=2)
        work = FORMULAS[name].flops(tokens=TOKENS, channels=width)
        found[name] = {
            "bytes_ms": moved / bytes_per_s * 1e3,
            "flops_ms": work / 790e12 * 1e3,
            "ms": {cut: statistics.median(values) for cut, values in times.items()},
        }
    return found


def plain_times(width: int) -> dict[str, float]:
    """Milliseconds of plain PyTorch under autocast, forward and backward together."""
    case = Case(width, TOKENS, torch.device("cuda"), torch.bfloat16)
    names = [f"{one}_backward" for one in CHECKED]
    runs: dict[str, Callable[[], object]] = {
        name: (lambda name=name: case.plain(name, wide=False)) for name in names
    }
    times = measure(runs, sweep=False, repeats=4)
    return {name: statistics.median(values) for name, values in times.items()}


def product_times(width: int) -> dict[str, float]:
    """Milliseconds of the products that the vendor's library makes in the backward pass."""
    from pitstop.kernels.block_triton import sum_of_products

    case = Case(width, TOKENS, torch.device("cuda"), torch.bfloat16)
    branch, hidden, operand, gated = case.outs
    qkv = case.qkv.weight.to(case.kind)
    joint = torch.cat([one.weight for one in case.layers[:2]]).to(case.kind)
    runs: dict[str, Callable[[], object]] = {
        "qkv_grad @ weight": lambda: case.qkv_grad @ qkv,
        "qkv_grad.T @ operand": lambda: sum_of_products(case.qkv_grad, operand),
        "grad.T @ branch": lambda: sum_of_products(branch, case.branch),
        "hidden_grad @ weights": lambda: hidden @ joint,
        "hidden_grad.T @ operand": lambda: sum_of_products(hidden, operand),
        "grad.T @ gated": lambda: sum_of_products(branch, gated),
    }
    times = measure(runs, sweep=False, repeats=REPEATS)
    return {name: statistics.median(values) for name, values in times.items()}


def table(report: dict[str, Any]) -> str:
    """All cuts as lines, the fastest of each kernel marked."""
    lines = [f"{'C':>4} {'kernel':26} {'ms':>7} {'floor':>6} {'error':>6} cut"]
    for width, row in report["widths"].items():
        for name, times in row["times"].items():
            floor = max(times["bytes_ms"], times["flops_ms"])
            best = min(times["ms"].values())
            for cut, ms in times["ms"].items():
                error = row["errors"].get(name, {}).get(cut, float("nan"))
                mark = " <" if ms == best else ""
                lines.append(
                    f"{width:>4} {name:26} {ms:7.3f} {ms / floor:5.1f}x {error:6.2f} {cut}{mark}"
                )
        lines.append(f"{width:>4} plain, forward and backward: {row['plain_ms']}")
        lines.append(f"{width:>4} products alone: {row['products_ms']}")
    return "\n".join(lines)


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=85.0)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    report: dict[str, Any] = {
        "what": "token-wise kernels of VRT's blocks, 6x256x256 tokens, bfloat16, float32 stream",
        "hardware": "CPU" if args.smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "widths": {},
    }
    if args.smoke:
        write(report | {"errors": errors_at(24, torch.device("cpu"))}, args.output)
        return
    until = time.monotonic() + args.limit_s
    failed = compile_all(min(len(os.sched_getaffinity(0)) // 2 or 1, 8))
    say(f"compiled, {until - time.monotonic():.0f} s left; failed: {failed}")
    bytes_per_s = copy_bytes_per_s()
    report |= {"copy_bytes_per_s": bytes_per_s, "failed": failed}
    for width in WIDTHS:
        if time.monotonic() > until:
            say(f"no time for width {width}")
            break
        skipped = "\n".join(failed)
        report["widths"][width] = {
            "errors": errors_at(width, torch.device("cuda"), skipped),
            "times": times_at(width, bytes_per_s, skipped),
            "plain_ms": plain_times(width),
            "products_ms": product_times(width),
        }
        write(report, args.output)
        say(f"width {width} done, {until - time.monotonic():.0f} s left")
    print(table(report))


if __name__ == "__main__":
    main()
