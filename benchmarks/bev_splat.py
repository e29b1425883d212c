"""The splat of six cameras: cumulative sums, index_add and the fused kernels, in one run.

    python benchmarks/bev_splat.py --output FILE.json [--shape surround] [--tune-s 120]
        [--tune columns]

There are two kinds of fused kernels: "fused" takes points with any ranks, "columns" those of whole
frustums. Networks run the second, through the same function: the plan of their points says so.

Points come from a ring of six level cameras like those of nuScenes. Each version gets the same
bfloat16 inputs and runs forward and backward (both gradients). Before anything is timed, results
and gradients are held against float64. Versions take turns; times are CUDA events around one call,
medians, once with the caches swept before each call and once as they are. The versions with static
shapes are replayed as CUDA graphs, so that the host does not count; cumulative sums cannot be (they
filter points) and run as they are. Memory is the peak above the inputs. With `--tune-s` some ways
to cut the kernels of each kind are tried for so long, and the fastest are used and written down;
the run as shipped is always written down as well. A plan is timed as an idle device sees it, which
waits for the host, and behind a queue, where it does not. `--smoke` runs on a CPU with tiny shapes
and without the fused kernels, where only the exactness means something.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from graphs import graph_of
from pitstop.kernels import has_triton, splat_columns_plan, splat_plan
from pitstop.kernels.splat import FORMULAS, splat_fused, splat_reference
from pitstop.kernels.splat_plan import SplatPlan, make_plan
from pitstop.workloads.bev.model.geometry import (
    Cameras,
    Lift,
    LiftedPoints,
    SplatGrid,
    lifted_points,
)

YAWS_DEG = (0.0, -55.0, 55.0, 180.0, 110.0, -110.0)
SWEEP_BYTES = 256 * 2**20
REPEATS = 30

Fused = Literal["fused", "columns"]
FUSED: tuple[Fused, ...] = ("fused", "columns")
NETWORK: Fused = "columns"
"""What a network runs."""
VERSIONS = ("cumsum", "index_add", *FUSED)
QUEUE_ROWS = 8192
"""Rows of a float32 product that takes longer than a host does to make a plan: some 20 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One configuration of a splat."""

    image_size: tuple[int, int]
    scale: float
    stride: int
    depth: tuple[float, float, float]
    channels: int
    bound: tuple[float, float, float]
    batch: int = 1


SHAPES = {
    "surround": Shape(
        image_size=(256, 704),
        scale=0.48,
        stride=8,
        depth=(1.0, 60.0, 0.5),
        channels=80,
        bound=(-51.2, 51.2, 0.4),
    ),
    "surround_batch4": Shape(
        image_size=(256, 704),
        scale=0.48,
        stride=8,
        depth=(1.0, 60.0, 0.5),
        channels=80,
        bound=(-51.2, 51.2, 0.4),
        batch=4,
    ),
    "bevdet": Shape(
        image_size=(256, 704),
        scale=0.48,
        stride=16,
        depth=(1.0, 60.0, 1.0),
        channels=64,
        bound=(-51.2, 51.2, 0.8),
    ),
    "smoke": Shape(
        image_size=(64, 96),
        scale=0.1,
        stride=16,
        depth=(1.0, 30.0, 3.0),
        channels=8,
        bound=(-20.0, 20.0, 2.0),
    ),
}


def ring_of_cameras(shape: Shape) -> Cameras:
    """Six level cameras; images scaled, cut at the bottom edge and centred."""
    height, width = shape.image_size
    intrinsics = torch.tensor([[1266.0, 0.0, 816.0], [0.0, 1266.0, 491.0], [0.0, 0.0, 1.0]])
    intrinsics = intrinsics.repeat(6, 1, 1)
    intrinsics[3, :2, :2] *= 809 / 1266
    transform = torch.diag(torch.tensor([shape.scale, shape.scale, 1.0]))
    transform[0, 2] = -(1600 * shape.scale - width) / 2
    transform[1, 2] = -(900 * shape.scale - height)
    yaw = torch.deg2rad(torch.tensor(YAWS_DEG))
    ahead = torch.stack((yaw.cos(), yaw.sin(), torch.zeros(6)), dim=-1)
    right = torch.stack((yaw.sin(), -yaw.cos(), torch.zeros(6)), dim=-1)
    down = torch.tensor([0.0, 0.0, -1.0]).expand(6, 3)
    to_ego = torch.eye(4).repeat(6, 1, 1)
    to_ego[:, :3, :3] = torch.stack((right, down, ahead), dim=-1)
    to_ego[:, :3, 3] = 0.8 * ahead + torch.tensor([0.9, 0.0, 1.5])
    batch = shape.batch
    return Cameras(
        intrinsics.expand(batch, 6, 3, 3),
        to_ego.expand(batch, 6, 4, 4),
        transform.expand(batch, 6, 3, 3),
        torch.eye(4).expand(batch, 4, 4),
    )


@dataclass(slots=True, kw_only=True)
class Case:
    """Inputs of a splat on a device."""

    depth: Tensor
    feat: Tensor
    grad: Tensor
    points: LiftedPoints
    num_cells: int
    shape: Shape
    lift: Lift
    grid: SplatGrid
    cameras: Cameras
    rows: SplatPlan | None = None
    """For the version that takes any ranks; the points have the plan of columns."""

    def replan(self) -> None:
        """Find the points and sort them anew."""
        points = lifted_points(self.cameras, self.lift, self.grid, with_plan=False)
        self.rows = make_plan(
            points[:3],
            num_cells=self.num_cells,
            num_features=self.feat.shape[0],
            cell_picture=self.grid.shape[1:],
            feature_picture=self.lift.feature_size,
            weights_differ=True,
        )

    def replan_columns(self) -> None:
        """Find the points and the pairs of columns and tiles anew."""
        self.points = lifted_points(self.cameras, self.lift, self.grid, with_plan=True)


def make_case(shape: Shape, device: torch.device, *, with_plan: bool) -> Case:
    """Draw inputs and find out where the points go."""
    lift = Lift(image_size=shape.image_size, stride=shape.stride, depth=shape.depth)
    grid = SplatGrid(
        forward=shape.bound, across=shape.bound, height=(-10.0, 10.0, 20.0), frame="ego"
    )
    cameras = Cameras(*(matrix.to(device) for matrix in ring_of_cameras(shape)))
    rows, columns = lift.feature_size
    pixels = shape.batch * 6 * rows * columns
    torch.manual_seed(0)
    depth = torch.randn(pixels, lift.num_bins, device=device).softmax(-1)
    feat = torch.randn(pixels, shape.channels, device=device)
    num_cells = shape.batch * grid.num_cells
    grad = torch.randn(num_cells, shape.channels, device=device)
    case = Case(
        depth=depth.bfloat16().requires_grad_(),
        feat=feat.bfloat16().requires_grad_(),
        grad=grad.bfloat16(),
        points=lifted_points(cameras, lift, grid, with_plan=with_plan),
        num_cells=num_cells,
        shape=shape,
        lift=lift,
        grid=grid,
        cameras=cameras,
    )
    if with_plan:
        case.replan()
    return case


class SortedSums(torch.autograd.Function):
    """Sums of runs of equal ranks as differences of one long cumulative sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
        """Give the sums and their ranks."""
        last = torch.ones_like(ranks, dtype=torch.bool)
        last[:-1] = ranks[1:] != ranks[:-1]
        sums = rows.cumsum(0)[last]
        sums = torch.cat((sums[:1], sums[1:] - sums[:-1]))
        run = last.cumsum(0)
        run[last] -= 1
        ctx.save_for_backward(run)
        kept = ranks[last]
        ctx.mark_non_differentiable(kept)
        return sums, kept

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Hand the gradient of a sum to all that was summed."""
        (run,) = ctx.saved_tensors
        return grads[0][run], None


def splat_cumsum(depth: Tensor, feat: Tensor, points: LiftedPoints, num_cells: int) -> Tensor:
    """Lift every point, filter, sort by cell, sum cumulatively, in float32."""
    rows = depth.flatten()[points.ranks_depth, None].float() * feat.float()[points.ranks_feat]
    kept = points.ranks_bev < num_cells
    rows, ranks = rows[kept], points.ranks_bev[kept]
    order = ranks.argsort()
    sums, cells = SortedSums.apply(rows[order], ranks[order])
    out = sums.new_zeros(num_cells, feat.shape[1])
    out[cells.long()] = sums
    return out.to(feat.dtype)


Step = Callable[[], tuple[Tensor, ...]]


def step_of(case: Case, version: str) -> Step:
    """Forward and backward of one version."""

    def run() -> tuple[Tensor, ...]:
        points, cells = case.points, case.num_cells
        if version == "cumsum":
            out = splat_cumsum(case.depth, case.feat, points, cells)
        elif version == "index_add":
            out = splat_reference(case.depth, case.feat, *points[:3], cells)
        else:
            plan = points.plan if version == "columns" else case.rows
            assert plan is not None
            out = splat_fused(case.depth, case.feat, *points[:3], cells, plan)
        return out.detach(), *torch.autograd.grad(out, (case.depth, case.feat), case.grad)

    return run


def exactness(case: Case, step: Step) -> dict[str, float]:
    """Largest error against float64 over the root mean square of what is right."""
    depth = case.depth.detach().double().requires_grad_()
    feat = case.feat.detach().double().requires_grad_()
    out = splat_reference(depth, feat, *case.points[:3], case.num_cells)
    right = (out.detach(), *torch.autograd.grad(out, (depth, feat), case.grad.double()))
    errors = {}
    for name, mine, true in zip(("output", "depth", "feat"), step(), right, strict=True):
        rms = true.square().mean().sqrt()
        errors[name] = float((mine.double() - true.view_as(mine)).abs().max() / rms)
    return errors


def measure(
    runs: dict[str, Callable[[], object]],
    *,
    sweep: bool,
    repeats: int = REPEATS,
    queue: bool = False,
) -> dict[str, list[float]]:
    """Milliseconds of each run, taking turns; behind a ``queue`` the device never waits."""
    buffer = torch.empty(SWEEP_BYTES, dtype=torch.uint8, device="cuda")
    busy = torch.zeros(QUEUE_ROWS, QUEUE_ROWS if queue else 0, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if sweep:
                buffer.zero_()
            else:
                run()
            if queue:
                torch.mm(busy, busy)
            start.record()
            run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in events.items()
    }


def peak_bytes(step: Step) -> int:
    """Most memory above what was held before, results included."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() - before


def floors(case: Case) -> dict[str, int]:
    """Bytes that must move, from the formulas of the kernels."""
    kept = int((case.points.ranks_bev < case.num_cells).sum())
    sizes = {
        "num_points": kept,
        "num_weights": case.depth.numel(),
        "num_rows": case.feat.shape[0],
        "num_cells": case.num_cells,
        "channels": case.feat.shape[1],
        "itemsize": 2,
    }
    forward = FORMULAS["splat"].num_bytes(**sizes)
    backward = FORMULAS["splat_backward"].num_bytes(**sizes)
    return {"points": case.depth.numel(), "kept": kept, "forward": forward, "backward": backward}


def copy_bytes_per_s() -> float:
    """What the device's memory does in a plain copy, reads and writes counted."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = measure({"copy": lambda: target.copy_(source)}, sweep=False, repeats=10)["copy"]
    return 2 * source.numel() / (statistics.median(times) / 1e3)


def candidates(version: Fused) -> Iterator[tuple[str, str, Any]]:
    """Ways to cut the kernels, one change at a time: what is changed, and to what."""
    if version == "columns":
        yield from column_candidates()
        return
    for points, warps, stages in itertools.product((64, 128, 32), (2, 4), (2, 1, 3)):
        yield "launch", "FORWARD", (points, 128, warps, stages)
        yield "launch", "BACKWARD", (points, 128, warps, stages)
    for chunk in (256, 1024, 2048):
        yield "plan", "CELL_CHUNK", chunk
        yield "plan", "FEATURE_CHUNK", chunk
    for tile in ((2, 8), (8, 2), (1, 16), (16, 1)):
        yield "plan", "CELL_TILE", tile
    for tile in ((4, 4), (8, 2), (2, 8), (1, 16)):
        yield "plan", "FEATURE_TILE", tile


def column_candidates() -> Iterator[tuple[str, str, Any]]:
    """The same for the kernels of columns: what is likely to matter comes first."""
    backward = ((32, 4), (16, 1), (16, 2), (32, 2), (64, 4), (32, 8), (128, 8), (64, 8))
    forward = ((4, 4), (2, 2), (1, 1), (2, 4), (2, 1), (4, 2), (8, 4))
    for bins, warps in backward:
        yield "launch", "BACKWARD", (bins, 512, warps, 1)
    for pairs, warps in forward:
        yield "launch", "FORWARD", (pairs, warps, 1)
    for chunk in (8, 32, 64):
        yield "plan", "CHUNK", chunk
    for tile, bins in (((8, 4), 4), ((8, 8), 8), ((8, 4), 8), ((4, 4), 8), ((4, 4), 2)):
        yield "plan", "CELL_TILE PAIR_BINS", (tile, bins)
    for (pairs, warps), stages in itertools.product(forward, (2, 3)):
        yield "launch", "FORWARD", (pairs, warps, stages)
    for (bins, warps), programs in itertools.product(backward, (1024, 2048, 4096)):
        yield "launch", "BACKWARD", (bins, programs, warps, 1)


def put(module: Any, names: str, value: Any) -> Any:
    """Change one name of a module, or several at once, and give what was there."""
    parts = names.split()
    before = [getattr(module, name) for name in parts]
    values = [value] if len(parts) == 1 else value
    for name, old, new in zip(parts, before, values, strict=True):
        # Launches are tuples with names.
        setattr(module, name, type(old)(*new) if hasattr(old, "_fields") else new)
    return before[0] if len(parts) == 1 else before


def cuts(version: Fused) -> tuple[Any, Any, tuple[str, ...]]:
    """Where launches and plans of a version are said, and the names of what plans are cut by."""
    if version == "columns":
        from pitstop.kernels import splat_columns_triton

        names = ("CHUNK", "CELL_TILE", "PAIR_BINS")
        return splat_columns_triton, splat_columns_plan, names
    from pitstop.kernels import splat_triton

    names = ("CELL_CHUNK", "FEATURE_CHUNK", "CELL_TILE", "FEATURE_TILE")
    return splat_triton, splat_plan, names


def tune(case: Case, version: Fused, limit_s: float) -> dict[str, Any]:
    """Try candidates until the time is up; the fastest of each kind stay in force."""
    launches, plans, plan_names = cuts(version)
    replan = case.replan_columns if version == "columns" else case.replan
    until = time.monotonic() + limit_s
    best_ms = timed(case, version)
    tried: list[dict[str, Any]] = [{"change": "as shipped", "ms": best_ms}]
    for kind, name, value in candidates(version):
        if time.monotonic() > until:
            break
        module = launches if kind == "launch" else plans
        before = put(module, name, value)
        try:
            replan()
            ms = timed(case, version)
        except Exception as error:  # noqa: BLE001 - a cut that does not compile is a result
            tried.append({"change": f"{name}={value}", "error": str(error)[:200]})
            put(module, name, before)
            continue
        tried.append({"change": f"{name}={value}", "ms": ms})
        if ms < best_ms * 0.98:
            best_ms = ms
        else:
            put(module, name, before)
    replan()
    chosen = {name: getattr(plans, name) for name in plan_names}
    chosen |= {name: tuple(getattr(launches, name)) for name in ("FORWARD", "BACKWARD")}
    return {"tried": tried, "chosen": chosen, "ms": best_ms}


def timed(case: Case, version: Fused) -> float:
    """Milliseconds of a fused version as things stand."""
    run = graph_of(step_of(case, version))
    return statistics.median(measure({version: run}, sweep=True, repeats=10)[version])


def kernel_times(case: Case, version: Fused) -> dict[str, float]:
    """Forward and backward of a fused version apart, swept, and its plan."""
    passes = column_passes(case) if version == "columns" else fused_passes(case)
    runs = {name: graph_of(step) for name, step in passes.items()}
    medians = measure(runs, sweep=True)
    replan = case.replan_columns if version == "columns" else case.replan
    planning = {
        name: measure({name: replan}, sweep=False, repeats=5, queue=queue)[name]
        for name, queue in (("plan_on_device", False), ("plan_behind_queue", True))
    }
    return {name: statistics.median(times) for name, times in (medians | planning).items()}


def fused_passes(case: Case) -> dict[str, Step]:
    """The kernels for any ranks, without autograd."""
    from pitstop.kernels.splat_triton import sum_rows, sum_rows_and_products

    plan = case.rows
    assert plan is not None
    depth, feat = case.depth.detach().flatten(), case.feat.detach()
    return {
        "forward": lambda: (sum_rows(depth, feat, plan.by_cell, plan.cells),),
        "backward": lambda: sum_rows_and_products(
            depth, case.grad, feat, plan.by_feature, plan.features, scatter=True
        ),
    }


def column_passes(case: Case) -> dict[str, Step]:
    """The kernels for columns, without autograd."""
    from pitstop.kernels.splat_columns_triton import gather_columns, splat_pairs

    plan = case.points.plan
    assert plan is not None
    depth, feat = case.depth.detach().flatten(), case.feat.detach()
    return {
        "forward": lambda: (splat_pairs(depth, feat, plan),),
        "backward": lambda: gather_columns(
            case.grad, depth, feat, plan.pairs.targets, plan.frustum
        ),
    }


def pair_counts(case: Case) -> dict[str, int]:
    """How many pairs and pieces the plan of the columns has, and room for."""
    plan = case.points.plan
    assert plan is not None
    pairs = plan.pairs
    return {
        "columns": plan.frustum.num_columns,
        "pairs": int(pairs.ends.max()),
        "pieces": int((pairs.tiles >= 0).sum()),
        "room_for_pieces": pairs.tiles.numel(),
    }


def compare(case: Case, bytes_per_s: float) -> dict[str, Any]:
    """Times, memory and ratios of all versions."""
    steps = {name: step_of(case, name) for name in VERSIONS}
    errors = {name: exactness(case, step) for name, step in steps.items()}
    peaks = {name: peak_bytes(step) for name, step in steps.items()}
    runs = {name: steps[name] if name == "cumsum" else graph_of(steps[name]) for name in VERSIONS}
    floor = floors(case)
    floor_ms = (floor["forward"] + floor["backward"]) / bytes_per_s * 1e3
    result: dict[str, Any] = {
        "network_runs": NETWORK,
        "errors_over_rms": errors,
        "peak_bytes": peaks,
        "floor": floor | {"ms": floor_ms},
    }
    for caches, sweep in (("swept", True), ("warm", False)):
        times = measure(runs, sweep=sweep)
        medians = {name: statistics.median(values) for name, values in times.items()}
        result[caches] = {
            "ms": medians,
            "spread_ms": {name: [min(values), max(values)] for name, values in times.items()},
            **{f"{name}_over_floor": medians[name] / floor_ms for name in FUSED},
            **{
                f"{slow}_over_{name}": medians[slow] / medians[name]
                for name in FUSED
                for slow in VERSIONS
                if slow not in FUSED
            },
            "fused_over_columns": medians["fused"] / medians["columns"],
            "network_over_floor": medians[NETWORK] / floor_ms,
        }
    result["kernels_swept_ms"] = kernel_times(case, "fused")
    result["column_kernels_swept_ms"] = kernel_times(case, "columns")
    result["column_plan"] = pair_counts(case)
    frustum_bytes = case.depth.numel() * case.feat.shape[1] * 2
    result["row_per_point_bytes_bf16"] = frustum_bytes
    result["fused_peak_over_row_per_point"] = peaks["fused"] / frustum_bytes
    result["columns_peak_over_row_per_point"] = peaks["columns"] / frustum_bytes
    return result


def smoke() -> dict[str, Any]:
    """Check what can be checked on a CPU."""
    case = make_case(SHAPES["smoke"], torch.device("cpu"), with_plan=False)
    return {name: exactness(case, step_of(case, name)) for name in ("cumsum", "index_add")} | {
        "floor": floors(case)
    }


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="surround")
    parser.add_argument("--tune-s", type=float, default=0.0, help="seconds for each kind")
    parser.add_argument("--tune", choices=FUSED, nargs="+", default=FUSED)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.output.write_text(json.dumps(smoke(), indent=1) + "\n")
        return
    if not (torch.cuda.is_available() and has_triton()):
        parser.error("needs a CUDA device and Triton; --smoke runs without")
    case = make_case(SHAPES[args.shape], torch.device("cuda"), with_plan=True)
    bytes_per_s = copy_bytes_per_s()
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "shape": args.shape,
        "sizes": asdict(case.shape),
        "copy_bytes_per_s": bytes_per_s,
        "as_shipped": compare(case, bytes_per_s),
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    if args.tune_s:
        result["tuning"] = {name: tune(case, name, args.tune_s) for name in args.tune}
        result["tuned"] = compare(case, bytes_per_s)
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in result if key != "tuning"}, indent=1))


if __name__ == "__main__":
    main()
