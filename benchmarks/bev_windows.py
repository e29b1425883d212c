"""Attention in the windows of swin_t: as transformers has it, compiled, and in one operation.

    python benchmarks/bev_windows.py --output FILE.json [--batch 32] [--tune-s 120]

Windows are those of the four stages for images of 600x800 pixels, with the mask of shifted blocks
and without. "plain" begins with three projections as three tensors and does what transformers does
with them, compiled by torch; "fused" begins with one joined tensor and is
`pitstop.kernels.windows`. Both run forward and backward (gradients of the projections and of the
bias) in bfloat16; projections themselves are in neither. Before anything is timed, the windows of
two images are held against float64. Versions take turns, replayed as CUDA graphs with the caches
swept before each call; times are CUDA events, medians. Floors are the bytes of the formulas at the
rate of a plain copy. Totals count every block of the network, half of them shifted. With
`--tune-s` some ways to cut the kernels are tried on two stages, for so long, and the fastest are
used and written down; the run as shipped is always written down as well. `--smoke` runs on a CPU
with tiny windows, where only the exactness means something.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from bev_splat import Step, copy_bytes_per_s, graph_of, measure, peak_bytes
from pitstop.kernels import has_triton
from pitstop.kernels.windows import FORMULAS, attend_windows
from progress import say, write

REPEATS = 20
TUNED_ON = (0, 2)
"""Stages with the most to do: the first by its size, the third by its blocks."""
Launches = dict[str, tuple[int | None, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Windows of one stage of a network."""

    blocks: int
    places: int
    """Windows of one image."""
    heads: int
    batch: int
    tokens: int = 49
    channels: int = 32
    shifted: bool = True

    @property
    def name(self) -> str:
        """Say what it is."""
        kind = "shifted" if self.shifted else "not shifted"
        return f"{self.places} windows an image, {self.heads} heads, {kind}"

    @property
    def num_windows(self) -> int:
        """Windows of the batch."""
        return self.batch * self.places


def swin_t(batch: int) -> list[Shape]:
    """The stages for images of 600x800 pixels: 150x200 tokens, in windows of 7, then halved."""
    sides = ((22, 29), (11, 15), (6, 8), (3, 4))
    return [
        Shape(blocks=blocks, places=high * wide, heads=heads, batch=batch)
        for (high, wide), blocks, heads in zip(sides, (2, 2, 6, 2), (3, 6, 12, 24), strict=True)
    ]


SMOKE = [Shape(blocks=2, places=6, heads=2, batch=2, tokens=9, channels=8)]


@dataclass(slots=True, kw_only=True)
class Case:
    """Inputs on a device."""

    shape: Shape
    qkv: Tensor
    bias: Tensor
    mask: Tensor | None
    grad: Tensor

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return self.shape.channels**-0.5

    def double(self) -> "Case":
        """Give the same in float64."""
        return Case(
            shape=self.shape,
            qkv=self.qkv.detach().double().requires_grad_(),
            bias=self.bias.detach().double().requires_grad_(),
            mask=None if self.mask is None else self.mask.double(),
            grad=self.grad.double(),
        )


def make_case(shape: Shape, device: torch.device) -> Case:
    """Draw inputs; the mask says something about some windows only, as at the edges of an image."""
    torch.manual_seed(0)
    tokens, heads, channels = shape.tokens, shape.heads, shape.channels
    qkv = torch.randn(shape.num_windows, tokens, 3, heads, channels, device=device)
    mask = None
    if shape.shifted:
        apart = torch.rand(shape.places, tokens, tokens, device=device) > 0.5
        edge = torch.arange(shape.places, device=device) % 5 == 0
        mask = torch.where(apart & edge[:, None, None], -100.0, 0.0)
    return Case(
        shape=shape,
        qkv=qkv.bfloat16().requires_grad_(),
        bias=torch.randn(heads, tokens, tokens, device=device).requires_grad_(),
        mask=mask,
        grad=torch.randn(shape.num_windows, tokens, heads, channels, device=device).bfloat16(),
    )


def attend_plainly(parts: list[Tensor], bias: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend as a block of transformers does, from (N, T, H, D) queries, keys and values."""
    query, key, value = (part.transpose(1, 2) for part in parts)
    added = bias[None]
    if mask is not None:
        images = query.shape[0] // mask.shape[0]
        added = added + mask[None, :, None].expand(images, -1, -1, -1, -1).flatten(0, 1)
    scores = query @ key.transpose(2, 3) * scale + added
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous()


def step_of(case: Case, version: str, *, compiled: bool) -> Step:
    """Forward and backward of one version: its result, and gradients of projections and bias."""
    if version == "fused":

        def fused() -> tuple[Tensor, ...]:
            out = attend_windows(case.qkv, case.bias, case.mask, scale=case.scale)
            return out.detach(), *torch.autograd.grad(out, (case.qkv, case.bias), case.grad)

        return fused
    parts = [part.detach().clone().requires_grad_() for part in case.qkv.unbind(2)]
    attend: Callable[..., Tensor] = attend_plainly
    if compiled:
        attend = torch.compile(attend_plainly, fullgraph=True, dynamic=False)

    def plain() -> tuple[Tensor, ...]:
        out = attend(parts, case.bias, case.mask, case.scale)
        return out.detach(), *torch.autograd.grad(out, (*parts, case.bias), case.grad)

    return plain


def exactness(shape: Shape, device: torch.device) -> dict[str, dict[str, float]]:
    """Root mean square of the errors over that of what is right, for two images."""
    case = make_case(replace(shape, batch=min(shape.batch, 2)), device)
    right = step_of(case.double(), "plain", compiled=False)()
    errors = {}
    for version in ("plain", "fused"):
        out, *found, bias = step_of(case, version, compiled=False)()
        qkv = torch.stack(found, 2) if version == "plain" else found[0]
        wanted = (right[0], torch.stack(right[1:4], 2), right[4])
        errors[version] = {
            name: float((mine.double() - true).square().mean().sqrt() / true.square().mean().sqrt())
            for name, mine, true in zip(
                ("output", "qkv", "bias"), (out, qkv, bias), wanted, strict=True
            )
        }
    return errors


def floor_bytes(shape: Shape) -> dict[str, int]:
    """Bytes that must move, from the formulas of the kernels."""
    sizes = {
        "num_windows": shape.num_windows,
        "num_tokens": shape.tokens,
        "heads": shape.heads,
        "channels": shape.channels,
        "itemsize": 2,
    }
    bias = shape.heads * shape.tokens**2 * 4
    mask = shape.places * shape.tokens**2 * 4 if shape.shifted else 0
    forward, backward = FORMULAS["attend_windows"], FORMULAS["attend_windows_backward"]
    return {
        "forward": forward.num_bytes(**sizes, added_bytes=bias + mask),
        "backward": backward.num_bytes(**sizes, added_bytes=2 * bias + mask),
    }


def kernels_of(case: Case, **launches: Any) -> dict[str, Step]:
    """The two kernels, without autograd."""
    from pitstop.kernels.windows_triton import attend, attend_backward

    qkv, bias = case.qkv.detach(), case.bias.detach()
    return {
        "forward": lambda: (
            attend(qkv, bias, case.mask, case.scale, launch=launches.get("forward")),
        ),
        "backward": lambda: attend_backward(
            case.grad, qkv, bias, case.mask, case.scale, launch=launches.get("backward")
        ),
    }


def medians(runs: dict[str, Step], repeats: int = REPEATS) -> dict[str, float]:
    """Milliseconds of steps that take turns, replayed, caches swept."""
    replayed = {name: graph_of(step) for name, step in runs.items()}
    times = measure(replayed, sweep=True, repeats=repeats)
    return {name: statistics.median(values) for name, values in times.items()}


def compare(shape: Shape, bytes_per_s: float, *, with_plain: bool) -> dict[str, Any]:
    """Times and memory of the versions for one kind of block."""
    # Its graphs are of one shape each, and there is a limit to how many it makes.
    torch._dynamo.reset()
    case = make_case(shape, torch.device("cuda"))
    versions = ("plain", "fused") if with_plain else ("fused",)
    steps = {name: step_of(case, name, compiled=True) for name in versions}
    peaks = {name: [step(), peak_bytes(step)][1] for name, step in steps.items()}
    ms = medians(steps)
    floor = floor_bytes(shape)
    floor_ms = sum(floor.values()) / bytes_per_s * 1e3
    return {
        "ms": ms,
        "kernels_ms": medians(kernels_of(case)),
        "peak_bytes": peaks,
        "floor_bytes": floor,
        "floor_ms": floor_ms,
        "fused_over_floor": ms["fused"] / floor_ms,
        **({"plain_over_fused": ms["plain"] / ms["fused"]} if with_plain else {}),
    }


def network(shapes: list[Shape], bytes_per_s: float, *, with_plain: bool) -> dict[str, Any]:
    """All stages, and what they make of a network's forward and backward pass."""
    rows: dict[str, Any] = {}
    totals: dict[str, float] = {}
    for shape, shifted in itertools.product(shapes, (False, True)):
        one = replace(shape, shifted=shifted)
        rows[one.name] = row = compare(one, bytes_per_s, with_plain=with_plain)
        say(f"{one.name}: {json.dumps(row)}")
        for name, ms in (row["ms"] | {"floor": row["floor_ms"]}).items():
            totals[name] = totals.get(name, 0.0) + ms * shape.blocks / 2
        torch.cuda.empty_cache()
    return {"stages": rows, "network_ms": totals}


def candidates(kernel: str) -> Iterator[tuple[int | None, ...]]:
    """Ways to cut a kernel, what is likely to matter first: as `Launch` has them."""
    yield from ((16, 2048, 4, stages, None) for stages in (2, 1, 3))
    registers = (168, 128) if kernel == "backward" else (80,)
    yield from ((16, 2048, 4, 2, most) for most in registers)
    yield (16, 2048, 8, 2, None)
    yield (16, 2048, 2, 2, None)
    yield from ((run, 1, 4, 2, None) for run in (8, 32, 64, 4))
    yield from ((32, programs, 4, 2, None) for programs in (1024, 4096, 8192))
    yield from ((run, 1, 8, 3, None) for run in (16, 32))
    yield (32, 4096, 2, 3, None)


def tune(shapes: list[Shape], limit_s: float) -> dict[str, Any]:
    """Try candidates for each kernel until its half of the time is up; the fastest stay."""
    from pitstop.kernels import windows_triton

    cases = [make_case(shapes[stage], torch.device("cuda")) for stage in TUNED_ON]
    result: dict[str, Any] = {"tried": {}, "chosen": {}}
    for kernel in ("backward", "forward"):
        until = time.monotonic() + limit_s / 2
        tried: list[dict[str, Any]] = []
        for candidate in candidates(kernel):
            if time.monotonic() > until:
                break
            launch = windows_triton.Launch(*candidate)  # pyright: ignore[reportArgumentType]
            try:
                ms = sum(time_of(case, kernel, launch) * case.shape.blocks for case in cases)
            except Exception as error:  # noqa: BLE001 - a cut that does not compile is a result
                tried.append({"launch": candidate, "error": str(error)[:200]})
                continue
            tried.append({"launch": candidate, "ms": ms})
            say(f"{kernel}: {tried[-1]}")
        measured = [row for row in tried if "ms" in row]
        best = min(measured, key=lambda row: row["ms"])["launch"]
        setattr(windows_triton, kernel.upper(), windows_triton.Launch(*best))
        result["tried"][kernel], result["chosen"][kernel] = tried, best
    return result


def time_of(case: Case, kernel: str, launch: Any) -> float:
    """Milliseconds of a kernel that is cut so."""
    step = kernels_of(case, **{kernel: launch})[kernel]
    return medians({kernel: step}, repeats=10)[kernel]


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=32, help="images")
    parser.add_argument("--tune-s", type=float, default=0.0, help="seconds for both kernels")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if not args.smoke and not (torch.cuda.is_available() and has_triton()):
        parser.error("needs a CUDA device and Triton; --smoke runs without")
    device = torch.device("cpu" if args.smoke else "cuda")
    shapes = SMOKE if args.smoke else swin_t(args.batch)
    report: dict[str, Any] = {
        "what": "attention in the windows of swin_t at 600x800, forward and backward, bfloat16",
        "hardware": "CPU" if args.smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "batch": shapes[0].batch,
        "errors_over_rms": {shape.name: exactness(shape, device) for shape in shapes},
    }
    if args.smoke:
        report["floor_bytes"] = {shape.name: floor_bytes(shape) for shape in shapes}
    else:
        bytes_per_s = copy_bytes_per_s()
        report["copy_bytes_per_s"] = bytes_per_s
        report["as_shipped"] = network(shapes, bytes_per_s, with_plain=True)
        write(report, args.output)
        if args.tune_s:
            report["tuning"] = tune(shapes, args.tune_s)
            report["tuned"] = network(shapes, bytes_per_s, with_plain=False)
    write(report, args.output)
    print(json.dumps({key: report[key] for key in report if key != "tuning"}, indent=1))


if __name__ == "__main__":
    main()
