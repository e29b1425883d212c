"""VRT, published size: the authors' code beside ours, one training step, taking turns.

    python benchmarks/deblur_vrt.py --output FILE.json [--authors CHECKOUT] [--precisions bf16 fp32]

Every variant has the same weights (drawn once, biases not zero) and trains on one clip of six
frames of 256x256: forward, Charbonnier loss, backward, fused AdamW. Variants take turns, a step
each, timed by CUDA events; medians with their range. Branches are not dropped at random, so that
all do the same arithmetic. Before that, each variant's output is held against float32, and every
parameter's gradient: its error, over `--inputs` clips, as a multiple of the error that the
reference path has in the same precision. Launches are counted by the profiler in one step. Out of
memory is a result. The variant "fused, graph" records the whole step of "fused" as one CUDA graph
and replays it; being the same kernels, it is not checked again.

`--inference` restores six frames of 1280x720 instead, in the tiles of 256x256 with an overlap of 20
that the authors take, the same tiles for every variant, and holds the outputs against one another.
"fused, graph" records a pass as `pitstop infer` does and replays it for all tiles but the first;
"batch 2" takes two tiles at once. Peaks include the recording, times do not: later frames use it
again; `with_recording_ms` is the first restoration. What the allocator reserves at most stands
beside the peak. One pass of each variant is profiled.

CHECKOUT is a folder with the authors' `models/network_vrt.py`; without it ours are compared among
themselves. It needs torchvision and einops, which stand beside us, not among our dependencies.
`--smoke` runs a small network on a CPU, where only the exactness means something.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pitstop.train.model.recompute import recompute_all
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.model.vrt import VRT, VRT_GOPRO, VRT_SMALL
from pitstop.workloads.deblur.recorded import RecordedForward
from pitstop.workloads.deblur.tiling import even_share
from progress import say, write

FRAMES, SIDE = 6, 256
WARM_UP, TURNS = 2, 5
FRAME, OVERLAP, AT_ONCE = (720, 1280), 20, (2, 3)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None, "tf32": None}
RECOMPUTED = ("recompute_attention", "recompute_feed_forward", "recompute_alignment")
# The authors switch recomputation on for halves of blocks by these names.
AUTHORS_RECOMPUTE = {"use_checkpoint_attn": True, "use_checkpoint_ffn": True}


@dataclass(kw_only=True)
class Variant:
    """A network that trains, and what was measured of it."""

    name: str
    precision: str
    model: nn.Module
    graph: bool = False
    at_once: int = 1
    step_ms: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    run: Callable[[], Any] | None = None


def main() -> None:
    """Measure, and write down after every stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--authors", type=Path)
    parser.add_argument("--precisions", nargs="+", default=["bf16"], choices=list(DTYPES))
    parser.add_argument("--only", nargs="+", help="Names of variants.")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--inputs", type=int, default=1, help="Clips that errors are taken over.")
    parser.add_argument("--inference", action="store_true", help="Restore instead of training.")
    parser.add_argument("--no-check", action="store_true", help="Leave the gradients out.")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    device = torch.device("cpu" if options.smoke else "cuda")
    what = f"one training step of VRT, {FRAMES}x{SIDE}x{SIDE}, batch 1, variants in turns"
    if options.inference:
        what = f"VRT restores {FRAMES} frames of {FRAME} in tiles of {SIDE}, variants in turns"
    report: dict[str, Any] = {
        "what": what,
        "hardware": "CPU" if options.smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": [],
    }
    clip, sharp = clips(device, smoke=options.smoke)
    for precision in options.precisions:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        variants = make_variants(precision, options, device)
        if options.inference:
            rows = restore_in_turns(variants, device, turns=options.turns, smoke=options.smoke)
            report["rows"] += rows
            say("\n".join(str(row) for row in rows))
            write(report, options.output)
            continue
        pairs = [clips(device, smoke=options.smoke, seed=seed) for seed in range(options.inputs)]
        errors = {} if options.no_check else gradient_errors(variants, pairs)
        # Written before anything is timed: what comes later may be cut off.
        write({**report, "errors": errors}, options.output)
        rows = take_turns(variants, clip, sharp, turns=1 if options.smoke else options.turns)
        for row in rows:
            row.update(errors.get(row["name"], {}))
            say(str({key: value for key, value in row.items() if key != "kernels_ms"}))
        report["rows"] += rows
        write(report, options.output)
        del variants, rows
        gc.collect()


def clips(device: torch.device, *, smoke: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A clip and what it should become: smooth pictures that move, so that flows are not noise."""
    side, frames = (32, 2) if smoke else (SIDE, FRAMES)
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, side // 8 + 2, side // 8 + 2, generator=generator)
    big = nn.functional.interpolate(coarse, scale_factor=8.0, mode="bicubic").clamp(0, 1)
    moved = [big[..., 2 * i : 2 * i + side, i : i + side] for i in range(frames)]
    sharp = torch.stack(moved, dim=1).to(device)
    noise = torch.randn(sharp.shape, generator=generator).to(device) * 0.02
    return (sharp + noise).clamp(0, 1), sharp


def recompute(model: nn.Module) -> None:
    """Recompute both halves of every block, and the alignment of every stage."""
    for module in model.modules():
        for place in RECOMPUTED:
            if hasattr(module, place):
                setattr(module, place, recompute_all)


def make_variants(
    precision: str, options: argparse.Namespace, device: torch.device
) -> list[Variant]:
    """Build all variants of a precision with one set of weights."""
    settings = {**(VRT_SMALL if options.smoke else VRT_GOPRO), "drop_path_rate": 0.0}
    weights = trained_like(VRT(kernels="reference", **settings))
    ways = {
        "reference, recomputed": ("reference", True),
        "fused, recomputed": ("auto", True),
        "fused": ("auto", False),
        "fused, graph": ("auto", False),
    }
    if options.inference:
        del ways["fused, recomputed"]
        ways["fused, batch 2"] = ("auto", False)
        ways |= {f"fused, graph, batch {count}": ("auto", False) for count in AT_ONCE}
    variants = []
    if options.authors is not None:
        model = authors_network(options.authors, settings)
        variants.append(Variant(name="authors, recomputed", precision=precision, model=model))
    for name, (kernels, recomputed) in ways.items():
        model = VRT(kernels=kernels, **settings)  # type: ignore[arg-type]
        if recomputed:
            recompute(model)
        graph = "graph" in name and device.type == "cuda"
        variant = Variant(name=name, precision=precision, model=model, graph=graph)
        variant.at_once = int(name.rpartition("batch ")[2]) if "batch" in name else 1
        variants.append(variant)
    chosen = [one for one in variants if options.only is None or one.name in options.only]
    for one in chosen:
        one.model.load_state_dict(weights, strict=False)
        one.model.to(device).train()
    return chosen


def trained_like(model: nn.Module) -> dict[str, Tensor]:
    """Weights as after training: biases and position biases are not zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and not name.endswith("weight"):
                parameter.normal_(0, 0.02, generator=generator)
            if "relative_position_bias_table" in name:
                parameter.normal_(0, 0.3, generator=generator)
    return {name: value.clone() for name, value in model.state_dict().items()}


def authors_network(checkout: Path, settings: dict[str, Any]) -> nn.Module:
    """Build the authors' network from their own file."""
    sys.path.insert(0, str(checkout))
    from models.network_vrt import (  # pyright: ignore[reportMissingImports]
        VRT as Theirs,  # noqa: N811
    )

    theirs = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in settings.items()
        if key != "flow_channels"  # fixed in their code
    }
    return Theirs(
        **theirs,
        img_size=[FRAMES, SIDE, SIDE],
        spynet_path=None,
        **AUTHORS_RECOMPUTE,
    )


def loss_of(variant: Variant, clip: Tensor, sharp: Tensor) -> tuple[Tensor, Tensor]:
    """Forward pass and loss in the variant's precision."""
    dtype = DTYPES[variant.precision]
    with torch.autocast(clip.device.type, dtype=dtype, enabled=dtype is not None):
        restored = variant.model(clip)
    loss = ((restored.float() - sharp).square() + 1e-9).sqrt().mean()
    return loss, restored


def gradients_of(variant: Variant, clip: Tensor, sharp: Tensor) -> dict[str, Tensor]:
    """Output and gradients of all parameters, on the host."""
    variant.model.zero_grad(set_to_none=True)
    loss, restored = loss_of(variant, clip, sharp)
    loss.backward()
    found = {
        name: parameter.grad.float().cpu()
        for name, parameter in variant.model.named_parameters()
        if parameter.grad is not None
    }
    variant.model.zero_grad(set_to_none=True)
    return {**found, "output": restored.detach().float().cpu()}


def gradient_errors(
    variants: list[Variant], pairs: list[tuple[Tensor, Tensor]]
) -> dict[str, dict[str, Any]]:
    """Each variant's errors against float32, as multiples of the reference path's own."""
    reference = next((one for one in variants if one.name.startswith("reference")), None)
    if reference is None:
        return {}
    alone = [one for one in variants if not one.graph]
    squares: dict[str, dict[str, float]] = {one.name: {} for one in alone}
    failed: dict[str, dict[str, Any]] = {}
    for clip, sharp in pairs:
        wide = Variant(name="exact", precision="fp32", model=reference.model)
        exact = gradients_of(wide, clip, sharp)
        for one in alone:
            try:
                found = gradients_of(one, clip, sharp)
            except torch.OutOfMemoryError as failure:
                failed[one.name] = {"check": str(failure).splitlines()[0]}
                continue
            for name in found.keys() & exact.keys():
                square = error(found[name], exact[name]) ** 2
                squares[one.name][name] = squares[one.name].get(name, 0.0) + square
    own = squares[reference.name]
    return failed | {
        one.name: compared(squares[one.name], own, inputs=len(pairs))
        for one in alone
        if one.name not in failed
    }


def compared(squares: dict[str, float], own: dict[str, float], *, inputs: int) -> dict[str, Any]:
    """Errors as multiples of the reference path's own, from sums of their squares."""
    multiple = {name: (square / max(own[name], 1e-14)) ** 0.5 for name, square in squares.items()}
    worst = sorted(multiple, key=multiple.__getitem__)[-5:]
    return {
        "output_error": (squares["output"] / inputs) ** 0.5,
        "error_over_reference_median": statistics.median(multiple.values()),
        "error_over_reference_worst": multiple[worst[-1]],
        "worst_tensors": {name: multiple[name] for name in reversed(worst)},
        "beyond_1.25": sum(value > 1.25 for value in multiple.values()),
        "tensors": len(multiple),
    }


def error(value: Tensor, exact: Tensor) -> float:
    """Relative to the exact value's own size."""
    return float((value - exact).norm() / exact.norm().clamp_min(1e-12))


def take_turns(
    variants: list[Variant], clip: Tensor, sharp: Tensor, *, turns: int
) -> list[dict[str, Any]]:
    """Warm all up, then let each train a step in turn."""
    running = []
    for one in variants:
        optimizer = torch.optim.AdamW(
            one.model.parameters(), lr=1e-6, fused=clip.is_cuda, capturable=one.graph
        )
        one.run = step_of(one, optimizer, clip, sharp)
        try:
            peak(one)
            if one.graph:
                one.run = recorded(one)
            running.append(one)
        except torch.OutOfMemoryError as failure:
            one.facts["outcome"] = f"out of memory: {str(failure).splitlines()[0][:120]}"
            one.model.zero_grad(set_to_none=True)
    for _ in range(turns):
        for one in running:
            one.step_ms.append(timed_ms(one))
    first = running[0].step_ms
    for one in running:
        ratios = [base / mine for base, mine in zip(first, one.step_ms, strict=True)]
        one.facts |= {
            "step_ms": statistics.median(one.step_ms),
            "step_ms_range": [min(one.step_ms), max(one.step_ms)],
            "times_as_fast_as_first": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            **(launches(one) if clip.is_cuda else {}),
        }
    return [{"name": one.name, "precision": one.precision, **one.facts} for one in variants]


def restore_in_turns(
    variants: list[Variant], device: torch.device, *, turns: int, smoke: bool
) -> list[dict[str, Any]]:
    """Let each variant restore six large frames in turn; milliseconds, peak and distances."""
    height, width = (40, 48) if smoke else FRAME
    generator = torch.Generator().manual_seed(2)
    frames = 2 if smoke else FRAMES
    clip = torch.rand(1, frames, 3, height, width, generator=generator).to(device)
    outputs: dict[str, Tensor] = {}
    for one in variants:
        one.model.eval()
        restorer = Restorer(one, clip, side=32 if smoke else SIDE)
        # Once before peaks are taken: libraries load, and kernels compile.
        restorer.restore_first()
        restorer.recorded.forget()
        one.run = restorer.restore
        outputs[one.name] = restored_peak(one, device)
        if device.type == "cuda":
            one.run = restorer.restore_first
            profiled = launches(one)
            profiled["kernels_ms"] = dict(list(profiled["kernels_ms"].items())[:25])
            one.facts["one_pass"] = {"tiles": one.at_once, **profiled}
            one.run = restorer.restore
    for _ in range(1 if smoke else turns):
        for one in variants:
            one.step_ms.append(timed_ms(one))
    first = variants[0]
    fused = outputs.get("fused", outputs[first.name])
    return [
        {
            "name": one.name,
            "precision": one.precision,
            "restore_ms": statistics.median(one.step_ms),
            "restore_ms_range": [min(one.step_ms), max(one.step_ms)],
            "times_as_fast_as_first": statistics.median(
                base / mine for base, mine in zip(first.step_ms, one.step_ms, strict=True)
            ),
            "distance_from_first": error(outputs[one.name], outputs[first.name]),
            "distance_from_fused": error(outputs[one.name], fused),
            "same_bits_as_fused": torch.equal(outputs[one.name], fused),
            **one.facts,
        }
        for one in variants
    ]


def restored_peak(one: Variant, device: torch.device) -> Tensor:
    """Restore once, and note the most memory that was asked for and reserved meanwhile."""
    assert one.run is not None
    if device.type != "cuda":
        return one.run()
    gc.collect()
    torch.cuda.empty_cache()
    before, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    began_s = time.perf_counter()
    output = one.run()
    torch.cuda.synchronize()
    one.facts["with_recording_ms"] = (time.perf_counter() - began_s) * 1e3
    # What a variant holds itself are its weights, which lie there before it runs.
    own = sum(part.nbytes for part in one.model.state_dict().values())
    one.facts["peak_gib"] = (torch.cuda.max_memory_allocated() - before + own) / 2**30
    one.facts["reserved_gib"] = (torch.cuda.max_memory_reserved() - held + own) / 2**30
    return output


class Restorer:
    """Restores a clip in tiles whose overlaps are averaged, without gradients."""

    def __init__(self, one: Variant, clip: Tensor, *, side: int) -> None:
        self.one, self.clip = one, clip
        self.recorded = RecordedForward(lambda model, batch: model(batch.blur))
        windows = [
            (..., slice(top, top + side), slice(left, left + side))
            for top in starts(clip.shape[-2], side)
            for left in starts(clip.shape[-1], side)
        ]
        share = even_share(len(windows), one.at_once)
        self.calls = [windows[at : at + share] for at in range(0, len(windows), share)]

    def restore_first(self) -> Tensor:
        """What the first tiles become."""
        return self.restore_tiles(self.calls[0])

    def restore(self) -> Tensor:
        """All of the frames."""
        total, count = torch.zeros_like(self.clip), torch.zeros_like(self.clip[:1, :1, :1])
        for windows in self.calls:
            for window, tile in zip(windows, self.restore_tiles(windows).split(1), strict=True):
                total[window] += tile
                count[window] += 1
        return total / count

    def restore_tiles(self, windows: list[Any]) -> Tensor:
        """One pass."""
        dtype, nothing = DTYPES[self.one.precision], self.clip.new_zeros(1)
        with (
            torch.no_grad(),
            torch.autocast(self.clip.device.type, dtype=dtype, enabled=dtype is not None),
        ):
            tiles = torch.cat([self.clip[window] for window in windows])
            if not self.one.graph:
                return self.one.model(tiles)
            batch = ClipBatch(blur=tiles, sharp=tiles, spikes=None, clip=nothing, fresh=nothing)
            return self.recorded.of(self.one.model)(batch)


def starts(length: int, side: int) -> list[int]:
    """Where tiles begin along an axis: a step apart, and the last one at the end."""
    return [*range(0, length - side, side - OVERLAP), max(length - side, 0)]


def step_of(
    one: Variant, optimizer: torch.optim.Optimizer, clip: Tensor, sharp: Tensor
) -> Callable[[], None]:
    """One training step."""

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss, _ = loss_of(one, clip, sharp)
        loss.backward()
        optimizer.step()

    return step


def recorded(one: Variant) -> Callable[[], None]:
    """Record the step as one CUDA graph; what replays it takes its place."""
    assert one.run is not None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        one.run()
    torch.cuda.current_stream().wait_stream(stream)
    one.model.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.reset_peak_memory_stats()
    with torch.cuda.graph(graph):
        one.run()
    one.facts["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return graph.replay


def peak(one: Variant) -> None:
    """Warm up, and note the most memory beyond what others hold."""
    assert one.run is not None
    for number in range(WARM_UP):
        if number == WARM_UP - 1 and torch.cuda.is_available():
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
        one.run()
    if torch.cuda.is_available():
        one.facts["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        one.model.zero_grad(set_to_none=True)


def timed_ms(one: Variant) -> float:
    """One step, from an idle device to an idle device."""
    assert one.run is not None
    if not torch.cuda.is_available():
        one.run()
        return 1.0
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    one.run()
    end.record()
    torch.cuda.synchronize()
    one.model.zero_grad(set_to_none=True)
    return start.elapsed_time(end)


def launches(one: Variant) -> dict[str, Any]:
    """Count the kernels of a step, and sum the largest by name."""
    assert one.run is not None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        one.run()
        torch.cuda.synchronize()
    rows = [row for row in profile.key_averages() if row.self_device_time_total > 0]
    rows.sort(key=lambda row: -row.self_device_time_total)
    return {
        "launches": sum(row.count for row in rows),
        "device_ms": sum(row.self_device_time_total for row in rows) / 1e3,
        "kernels_ms": {
            row.key[:100]: [row.count, row.self_device_time_total / 1e3] for row in rows[:40]
        },
    }


if __name__ == "__main__":
    main()
