"""Alignment of VRT: the fused kernels against their floors and the reference, in one run.

    python benchmarks/deblur_alignment.py --output FILE.json [--size 256] [--candidates-s 35]

Six frames of 256x256 pixels, all ten pairs of neighbours in one call, bfloat16. Before anything is
timed, results and gradients at a small size are held against float64. Versions take turns; times
are CUDA events around one call, medians, with the caches swept before each. Floors are bytes over
a copy's rate and operations over a matrix product's, both measured here; the larger one counts.
Ways to cut each kernel are tried for so long, what is likely first; the shipped one is among them.
Flows and offsets are smooth, as trained ones are; `rough` is the same with white noise. `--smoke`
runs on a CPU with tiny shapes and the reference alone.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.kernels import deform_conv, flow_warp, has_triton
from pitstop.kernels.pairs import Pairs, neighbour_pairs
from pitstop.workloads.deblur.model.alignment import Alignment

GROUPS, TAPS, RESIDUE = 16, 9, 10.0
REPEATS = 15
SWEEP_BYTES = 256 * 2**20

FORWARD = (
    (64, 4, 8),
    (32, 4, 4),
    (32, 8, 8),
    (64, 8, 4),
    (128, 4, 8),
    (16, 8, 4),
    (64, 16, 8),
    (32, 16, 8),
)
BACKWARD = (
    (32, 4, 4),
    (64, 4, 8),
    (32, 4, 8),
    (32, 8, 8, 1, 2112),
    (32, 8, 8, 1, 528),
    (16, 8, 4),
    (32, 4, 4, 1, 2112),
    (64, 8, 8),
)
WARPS = ((2048, 4), (8192, 8), (4096, 8), (1024, 2))


class Scene(NamedTuple):
    """Inputs of one stage's alignment."""

    frames: Tensor
    raw: Tensor
    flow: Tensor
    weight: Tensor
    bias: Tensor
    raw_bias: Tensor
    pairs: Pairs

    def align(self, version: Callable[..., Tensor]) -> Tensor:
        """Run a version of the guided convolution."""
        return version(
            self.frames,
            self.raw,
            self.flow,
            self.weight,
            bias=self.bias,
            raw_bias=self.raw_bias,
            pairs=self.pairs,
            max_residue=RESIDUE,
        )


def noise(*shape: int, device: torch.device, smooth: bool) -> Tensor:
    """White noise, or noise that changes over some sixteen pixels."""
    if not smooth:
        return torch.randn(shape, device=device)
    *front, height, width = shape
    small = torch.randn(*front, height // 16 + 2, width // 16 + 2, device=device)
    return functional.interpolate(small, (height, width), mode="bilinear", align_corners=True)


def make_scene(
    size: int, channels: int, device: torch.device, *, smooth: bool = True, dtype: torch.dtype
) -> Scene:
    """Six frames and all their pairs."""
    torch.manual_seed(0)
    pairs = neighbour_pairs(1, 6, device)
    raw = noise(10, 3 * TAPS * GROUPS, size, size, device=device, smooth=smooth) * 0.3
    frames = torch.randn(6, channels, size, size, device=device)
    return Scene(
        frames.to(dtype).to(memory_format=torch.channels_last),
        raw.to(dtype).to(memory_format=torch.channels_last),
        3 * noise(10, 2, size, size, device=device, smooth=smooth),
        torch.randn(channels, channels, 3, 3, device=device) * (9 * channels) ** -0.5,
        torch.randn(channels, device=device),
        torch.randn(3 * TAPS * GROUPS, device=device) * 0.1,
        pairs,
    )


def exactness(device: torch.device, version: Callable[..., Tensor]) -> dict[str, float]:
    """Root mean square errors against float64, over the size of what is right."""
    scene = make_scene(40, 96, device, dtype=torch.bfloat16)
    names = ("frames", "raw", "flow", "weight", "bias", "raw_bias")

    def found(dtype: torch.dtype | None, run: Callable[..., Tensor]) -> list[Tensor]:
        parts = [getattr(scene, name).detach() for name in names]
        parts = [part.to(dtype or part.dtype).requires_grad_() for part in parts]
        out = scene._replace(**dict(zip(names, parts, strict=True))).align(run)
        torch.manual_seed(1)
        grad = torch.randn(out.shape, device=device).bfloat16().to(out.dtype)
        return [out.detach(), *torch.autograd.grad(out, parts, grad)]

    right = found(torch.float64, deform_conv.align_reference)
    mine = found(None, version)
    return {
        name: float((a.double() - b).square().mean().sqrt() / b.square().mean().sqrt())
        for name, a, b in zip(("output", *names), mine, right, strict=True)
    }


def measure(
    runs: dict[str, Callable[[], object]], repeats: int = REPEATS
) -> dict[str, list[float]]:
    """Milliseconds of each run, taking turns, caches swept before each."""
    buffer = torch.empty(SWEEP_BYTES, dtype=torch.uint8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            buffer.zero_()
            start.record()
            run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in events.items()
    }


def rates() -> dict[str, float]:
    """Bytes a second of a copy, and operations a second of a bf16 product."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    matrix = torch.randn(8192, 8192, device="cuda").bfloat16()
    times = measure({"copy": lambda: target.copy_(source), "product": lambda: matrix @ matrix}, 8)
    copy_s, product_s = (statistics.median(times[name]) / 1e3 for name in ("copy", "product"))
    return {"bytes_per_s": 2 * source.numel() / copy_s, "flops_per_s": 2 * 8192**3 / product_s}


def floors(scene: Scene, found: dict[str, float]) -> dict[str, dict[str, float]]:
    """Milliseconds that no version can undercut, by operation."""
    channels, size = scene.frames.shape[1], scene.frames.shape[2]
    sizes = {"in_channels": channels, "out_channels": channels, "taps": TAPS}
    pixels = 10 * size * size
    shape = {"channels": channels, "height": size, "width": size}
    conv, warp = deform_conv.FORMULAS, flow_warp.FORMULAS
    moved = sizes | {"pixels": pixels, "deform_groups": GROUPS, "itemsize": 2}
    counted = {
        f"align_{way}": (
            conv[name].flops(pixels=pixels, groups=1, **sizes),
            conv[name].num_bytes(**moved),
        )
        for way, name in (("forward", "deform_conv"), ("backward", "deform_conv_backward"))
    }
    join_bytes = warp["join"].num_bytes(pairs=10, images=6, itemsize=2, **shape)
    join_flops = warp["join"].flops(pairs=10, **shape)
    # Back: the same, and the frames' gradient out.
    counted["join_forward"] = (join_flops, join_bytes)
    counted["join_backward"] = (2 * join_flops, join_bytes + scene.frames.nbytes)
    return {
        name: {
            "gflop": flops / 1e9,
            "gbyte": num_bytes / 1e9,
            "ms": max(flops / found["flops_per_s"], num_bytes / found["bytes_per_s"]) * 1e3,
        }
        for name, (flops, num_bytes) in counted.items()
    }


def kernel_runs(scene: Scene) -> dict[str, Callable[..., object]]:
    """Each kernel by itself; they take a launch, or None for the shipped one."""
    from pitstop.kernels import deform_conv_triton as conv
    from pitstop.kernels import flow_warp_triton as warp

    channels, size = scene.frames.shape[1], scene.frames.shape[2]
    place = conv.Scene(scene.frames, scene.pairs.neighbours, scene.pairs.slots, scene.pairs.lacks)
    taps = conv.Taps(scene.raw, None, scene.raw_bias, scene.flow, RESIDUE)
    out = scene.frames.new_empty(6, size, size, 3 * channels)
    grad = torch.randn(out.shape, device="cuda").to(out.dtype)
    order = warp.Order(scene.pairs.current, scene.pairs.neighbours)
    layout = warp.Layout(2 * channels + 8, 0, channels, 2 * channels)
    seen = scene.frames.new_empty(10, size, size, 2 * channels + 8).permute(0, 3, 1, 2)
    grad_seen = torch.randn_like(seen)

    def align_forward(launch: Any = None) -> object:
        cut = launch and conv.Launch(*launch)
        return conv.convolve(place, taps, scene.weight, scene.bias, out, launch=cut)

    def align_backward(launch: Any = None, *, exact_sums: bool = False) -> object:
        cut = launch and conv.Launch(*launch)
        return conv.convolve_backward(
            place, taps, scene.weight, grad, launch=cut, exact_sums=exact_sums
        )

    def join_forward(launch: Any = None) -> object:
        cut = launch and warp.Launch(*launch)
        return warp.warp(scene.frames, scene.flow, seen, order, layout, border=False, launch=cut)

    def join_backward(launch: Any = None) -> object:
        cut = launch and warp.Launch(*launch)
        return warp.warp_backward(
            scene.frames, scene.flow, grad_seen, order, layout, border=False, launch=cut
        )

    return {
        "align_forward": align_forward,
        "align_backward": align_backward,
        "join_forward": join_forward,
        "join_backward": join_backward,
        "align_backward_exact_sums": lambda: align_backward(exact_sums=True),
    }


def try_candidates(runs: dict[str, Callable[..., object]], limit_s: float) -> dict[str, Any]:
    """Time each way to cut each kernel; those that do not compile are results, too."""
    until = time.monotonic() + limit_s
    waiting = {"align_forward": FORWARD, "align_backward": BACKWARD}
    waiting |= {"join_forward": WARPS, "join_backward": WARPS}
    tried: dict[str, Any] = {name: {"shipped": timed(runs[name])} for name in waiting}
    rounds = max(len(cuts) for cuts in waiting.values())
    for number in range(rounds):
        for name, cuts in waiting.items():
            if number < len(cuts) and time.monotonic() < until:
                cut = cuts[number]
                try:
                    tried[name][str(cut)] = timed(lambda run=runs[name], cut=cut: run(cut))
                except Exception as error:  # noqa: BLE001 - a cut that does not compile is a result
                    tried[name][str(cut)] = str(error)[:200]
    return tried


def timed(run: Callable[[], object]) -> float:
    """Milliseconds, median of some calls after a first one."""
    run()
    return statistics.median(measure({"": run}, 7)[""])


def module_runs(scene: Scene) -> dict[str, Callable[[], object]]:
    """A whole stage's alignment under autocast, forward and backward, by each kind of kernels."""
    channels, size = scene.frames.shape[1], scene.frames.shape[2]
    torch.manual_seed(2)
    module = Alignment(channels, num_steps=1, deformable_groups=GROUPS, max_residue=RESIDUE).cuda()
    torch.nn.init.normal_(dict(module.named_parameters())["conv_offset.6.weight"], std=0.01)
    x = torch.randn(1, 6, size, size, channels, device="cuda", requires_grad=True)
    flow = scene.flow.unflatten(0, (2, 5)).detach().requires_grad_()
    grad = torch.randn(1, 6, size, size, 3 * channels, device="cuda")

    def step(kernels: Any) -> object:
        module.kernels = kernels
        with torch.autocast("cuda", torch.bfloat16):
            out = module(x, (flow,))
        return torch.autograd.grad(out, (x, flow, *module.parameters()), grad.to(out.dtype))

    return {kernels: lambda kernels=kernels: step(kernels) for kernels in ("reference", "fused")}


def peak_bytes(run: Callable[[], object]) -> int:
    """Most memory above what was held before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


def launches_of(run: Callable[[], object]) -> int:
    """Kernels that one call starts."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.self_device_time_total > 0)


def compare(size: int, candidates_s: float) -> dict[str, Any]:
    """All of it on a device."""
    device = torch.device("cuda")
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "errors": {
            version.__name__: exactness(device, version)
            for version in (deform_conv.align_reference, deform_conv.align_fused)
        },
        "rates": rates(),
    }
    scene = make_scene(size, 96, device, dtype=torch.bfloat16)
    result["floors"] = floors(scene, result["rates"])
    runs = kernel_runs(scene)
    for run in runs.values():
        run()
    medians = {name: statistics.median(times) for name, times in measure(runs).items()}
    result["ms"] = medians
    result["over_floor"] = {
        name: medians[name] / floor["ms"] for name, floor in result["floors"].items()
    }
    rough = kernel_runs(make_scene(size, 96, device, smooth=False, dtype=torch.bfloat16))
    result["rough_ms"] = {
        name: statistics.median(times) for name, times in measure(rough, 5).items()
    }
    modules = module_runs(scene)
    for run in modules.values():
        run()
    result["module"] = {
        "ms": {name: statistics.median(times) for name, times in measure(modules, 7).items()},
        "peak_bytes": {name: peak_bytes(run) for name, run in modules.items()},
        "launches": {name: launches_of(run) for name, run in modules.items()},
    }
    result["candidates_ms"] = try_candidates(runs, candidates_s)
    return result


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--candidates-s", type=float, default=35.0)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        device = torch.device("cpu")
        rate = {"bytes_per_s": 1e10, "flops_per_s": 1e11}
        scene = make_scene(8, 96, device, dtype=torch.bfloat16)
        result: dict[str, Any] = {
            "errors": exactness(device, deform_conv.align_reference),
            "floors": floors(scene, rate),
        }
    else:
        if not (torch.cuda.is_available() and has_triton()):
            parser.error("needs a CUDA device and Triton; --smoke runs without")
        result = compare(args.size, args.candidates_s)
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
