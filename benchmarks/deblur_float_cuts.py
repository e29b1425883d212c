"""Kernels of VRT in TF32 and in float32, cut in several ways, and products by the vendor's library.

    python benchmarks/deblur_float_cuts.py --output FILE.json [--limit-s 110] [--only tf32 halves]

One call of each kernel at full size (a clip of six frames of 256x256), medians of turns by CUDA
events. A cut is compiled in a process of its own beforehand: one that crashes the compiler is a
result. What each cut writes is held against what the cut in use writes. Products and convolutions
of the library are timed in float32, in TF32, and as three products of numbers split in two, with
and without the splitting. Results are written after every group. `--smoke` runs what a CPU can.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

import deblur_attention
import deblur_block
from bev_splat import measure
from progress import say, write

REPEATS = 6
TOKENS: Final = 6 * 256 * 256
Cut = Any
"""What a kernel's launch is made of; None is the one in use."""


class Job(NamedTuple):
    """One cut of one kernel."""

    setting: str
    """``tf32``, ``halves`` (TF32 by float16) or ``fp32``."""
    kind: str
    """``forward`` and ``backward`` of attention, or a kernel of `deblur_block`."""
    place: int
    """Of the shape, or the width of tokens."""
    cut: Cut


ATTENTION = {shape.name: place for place, shape in enumerate(deblur_attention.SHAPES)}
HALVES: Final[dict[tuple[str, str], tuple[Cut, ...]]] = {
    ("self 128x16", "forward"): ((64, 128, 1056, 4, 2), (64, 128, 1584, 4, 2, 128)),
    ("self 128x16", "backward"): (((128, 128, 264, 8, 1), (64, 64, 1056, 4, 2)),),
    ("mutual 64x16", "forward"): ((64, 64, 1584, 4, 3, 96), (64, 64, 1584, 4, 4)),
    ("mutual 64x16", "backward"): (((64, 64, 1584, 4, 2), (64, 64, 1584, 4, 1)),),
    ("self 384x16", "forward"): ((64, 128, 528, 4, 2), (64, 64, 528, 4, 3)),
    ("self 384x20", "forward"): ((64, 64, 528, 4, 1), (64, 128, 528, 4, 2)),
    ("self 384x20", "backward"): (((64, 64, 528, 4, 2), (64, 64, 1056, 4, 2)),),
}
EXACT: Final[dict[tuple[str, str], tuple[Cut, ...]]] = {
    ("self 384x20", "forward"): ((64, 64, 1056, 4, 1),),
    ("self 384x20", "backward"): (((64, 32, 528, 4, 1), (64, 32, 1056, 4, 1)),),
}
BLOCK: Final[dict[str, dict[str, tuple[Cut, ...]]]] = {
    "tf32": {
        "norm_project": ((64, 32, 4, 1),),
        "project_add": (),
        "feed_forward_add": ((64, 64, 4, 1),),
        "feed_forward_hidden": ((64, 64, 4, 1),),
    },
    "fp32": {
        "norm_project": (),
        "feed_forward_add": ((32, 32, 4, 1), (64, 16, 4, 2)),
        "feed_forward_hidden": ((32, 16, 4, 1), (64, 16, 8, 1), (64, 32, 4, 1), (128, 16, 8, 1)),
    },
}


def jobs() -> list[Job]:
    """All of them, what is in use first."""
    found = []
    for setting, table in (("halves", HALVES), ("fp32", EXACT)):
        for (name, kind), cuts in table.items():
            found += [Job(setting, kind, ATTENTION[name], cut) for cut in (None, *cuts)]
    found += [
        Job("tf32", kind, ATTENTION[name], None)
        for name in ATTENTION
        for kind in ("forward", "backward")
    ]
    for setting, table in BLOCK.items():
        for name, cuts in table.items():
            found += [Job(setting, name, 96, cut) for cut in (None, *cuts)]
            found.append(Job(setting, name, 120, None))
    return found


def setting_on(setting: str) -> None:
    """Let float32 be multiplied so."""
    torch.backends.cuda.matmul.allow_tf32 = setting != "fp32"
    torch.backends.cudnn.allow_tf32 = setting != "fp32"


class Attention(deblur_attention.Case):
    """As there, in float32; ``halves`` are made beforehand, and their making is a run, too."""

    def __init__(self, shape: deblur_attention.Shape, setting: str) -> None:
        super().__init__(shape, torch.device("cuda"), torch.float32)
        self.stretch: Any = None
        if setting == "halves":
            from pitstop.kernels.window_attention_triton import Stretch

            self.wide = (self.qkv, self.grad)
            self.tops = torch.zeros(2, device="cuda")
            self.qkv = torch.empty_like(self.qkv, dtype=torch.float16)
            self.shorten()
            self.grad, top = self.shorten_grad()
            self.stretch = Stretch(self.tops, top)

    def shorten(self) -> None:
        """Bring the projection to 16 bits."""
        from pitstop.kernels.window_attention_triton import shorten

        mutual = self.shape.mutual
        shorten(self.wide[0], self.qkv, self.tops[1:] if mutual else self.tops[:1])

    def shorten_grad(self) -> tuple[Tensor, Tensor]:
        """Bring the gradient to 16 bits."""
        from pitstop.kernels.window_attention_triton import shorten_grad

        return shorten_grad(self.wide[1], self.tops)

    def run(self, kind: str, cut: Cut) -> tuple[Tensor, ...]:
        """Run a cut; gives what it wrote."""
        from pitstop.kernels.window_attention_triton import Plan, attend, attend_backward

        of = deblur_attention.launch_of
        if kind == "forward":
            launch = None if cut is None else of(cut)
            given = (self.qkv, self.table, self.out, self.rows, self.cut())
            attend(*given, stretch=self.stretch, launch=launch)
            return (self.out,)
        plan = None
        if cut is not None:
            backward, bias = (of(one) for one in cut)
            plan = Plan(backward, backward, bias)
        given = (self.grad, self.qkv, self.table, self.out, self.rows, self.cut(), self.grads)
        attend_backward(*given, stretch=self.stretch, plan=plan)
        return tuple(part for part in self.grads if part is not None)


def case_of(job: Job, *, small: bool) -> Callable[[str, Cut], tuple[Tensor, ...]]:
    """What runs cuts of a job's kernel: small to compile it, or at full size."""
    if job.kind in {"forward", "backward"}:
        shape = deblur_attention.SHAPES[job.place]
        case = Attention(deblur_attention.small(shape) if small else shape, job.setting)
        case.run("forward", None)
        return case.run
    tokens = 512 if small else TOKENS
    case = deblur_block.Case(job.place, tokens, torch.device("cuda"), torch.float32)

    def run(kind: str, cut: Cut) -> tuple[Tensor, ...]:
        case.run(kind, cut)
        return case.outs if kind == "feed_forward_hidden" else (case.out, case.qkv_out)

    return run


def compile_all() -> dict[int, str]:
    """Run every job once in a process of its own; gives what those that failed said."""

    def failure(number: int) -> str | None:
        command = [sys.executable, __file__, "--compile", str(number)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=60.0
            )
        except subprocess.TimeoutExpired:
            return "not within 60 s"
        said = (done.stderr.strip().splitlines() or ["no word"])[-1][:200]
        return said if done.returncode else None

    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 15)) as pool:
        found = enumerate(pool.map(failure, range(len(jobs()))))
        return {number: said for number, said in found if said is not None}


def distance(found: tuple[Tensor, ...], first: list[Tensor]) -> float:
    """The largest distance of two results, over the first one's size."""
    pairs = zip(found, first, strict=True)
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


def time_group(group: list[Job]) -> list[dict[str, Any]]:
    """Milliseconds of all cuts of one kernel, in turns."""
    run = case_of(group[0], small=False)
    runs: dict[str, Callable[[], object]] = {}
    rows, first = [], None
    for job in group:
        row = {**job._asdict(), "cut": job.cut}
        rows.append(row)
        try:
            found = run(job.kind, job.cut)
            first = first or [part.clone() for part in found]
            row["distance"] = distance(found, first)
        except Exception as failure:  # noqa: BLE001 - what fails is a result
            row["outcome"] = str(failure).splitlines()[0][:200]
            continue
        runs[str(job.cut)] = lambda job=job: run(job.kind, job.cut)
    times = measure(runs, sweep=False, repeats=REPEATS)
    for row in rows:
        if str(row["cut"]) in times:
            row["ms"] = statistics.median(times[str(row["cut"])])
    return rows


def groups(failed: dict[int, str]) -> Iterator[list[Job]]:
    """Jobs of one kernel, shape and setting, without those that failed."""
    table: dict[tuple[Any, ...], list[Job]] = {}
    for number, job in enumerate(jobs()):
        if number not in failed:
            table.setdefault(job[:3], []).append(job)
    yield from table.values()


def split(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two numbers of 11 bits for each, whose sum is it to 22."""
    if kind == torch.float16:
        high = x.half()
        return high, (x - high).half()
    high = (x.view(torch.int32) + 0x1000).bitwise_and(-0x2000).view(torch.float32)
    return high, x - high


def product_rows() -> list[dict[str, Any]]:
    """Products of the backward pass: as float32, as TF32, and as three of split numbers."""
    device = torch.device("cuda")
    shapes = {"grad @ weight": (TOKENS, 384, 96), "grad.T @ operand": (384, TOKENS, 104)}
    rows = []
    for name, (height, inner, width) in shapes.items():
        left = torch.randn((height, inner) if height == TOKENS else (inner, height), device=device)
        left = left if height == TOKENS else left.T
        right = torch.randn(inner, width, device=device)
        halves = [split(part, torch.float16) for part in (left, right)]
        shorts = [split(part, torch.float32) for part in (left, right)]

        def three(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
            (a, b), (c, d) = parts
            if a.dtype == torch.float16:
                out = torch.mm(a, c, out_dtype=torch.float32)
                out += torch.mm(a, d, out_dtype=torch.float32)
                out += torch.mm(b, c, out_dtype=torch.float32)
                return out
            return torch.addmm(torch.addmm(a @ c, a, d), b, c)

        def plain(setting: str, left: Tensor = left, right: Tensor = right) -> Tensor:
            setting_on(setting)
            return left @ right

        def of_tf32(shorts: Any = shorts) -> Tensor:
            setting_on("tf32")
            return three(shorts)

        exact = (left[:4096].double() @ right.double()) if height == TOKENS else None
        if exact is None:
            exact = left.double() @ right.double()
        runs: dict[str, Callable[[], Any]] = {
            "fp32": lambda: plain("fp32"),
            "tf32": lambda: plain("tf32"),
            "three of tf32": of_tf32,
            "three of fp16": lambda halves=halves: three(halves),
        }
        rows += library_rows(name, runs, exact)
        times = measure(
            {
                "split in fp16": lambda left=left: split(left, torch.float16),
                "split in tf32": lambda left=left: split(left, torch.float32),
            },
            sweep=False,
            repeats=REPEATS,
        )
        rows += [
            {"name": name, "way": way, "ms": statistics.median(ms)} for way, ms in times.items()
        ]
    return rows


def library_rows(
    name: str, runs: dict[str, Callable[[], Any]], exact: Tensor
) -> list[dict[str, Any]]:
    """Times and errors of ways to make one product."""
    errors: dict[str, Any] = {}
    for way, run in list(runs.items()):
        try:
            found = run()[: len(exact)].double()
            errors[way] = float((found - exact).norm() / exact.norm())
        except Exception as failure:  # noqa: BLE001 - what fails is a result
            errors[way] = str(failure).splitlines()[0][:200]
            del runs[way]
    times = measure(runs, sweep=False, repeats=REPEATS)
    return [
        {
            "name": name,
            "way": way,
            "error": errors[way],
            "ms": statistics.median(times[way]) if way in times else None,
        }
        for way in errors
    ]


CONVOLUTIONS: Final = ((200, 96), (96, 96), (96, 448))


def convolution_rows() -> list[dict[str, Any]]:
    """Convolutions of the offsets' network at full size: forward and both gradients."""
    rows = []
    for inputs, outputs in CONVOLUTIONS:
        for way in ("fp32", "fp32, by rows", "tf32", "fp16"):
            setting_on("fp32" if way.startswith("fp32") else "tf32")
            dtype = torch.float16 if way == "fp16" else torch.float32
            layout = torch.contiguous_format if "rows" in way else torch.channels_last
            given = {"device": "cuda", "dtype": dtype}
            x = torch.randn(10, inputs, 256, 256, **given).contiguous(memory_format=layout)
            grad = torch.randn(10, outputs, 256, 256, **given).contiguous(memory_format=layout)
            weight = torch.randn(outputs, inputs, 3, 3, **given) * 0.03
            how = ([0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
            back = torch.ops.aten.convolution_backward.default
            runs: dict[str, Callable[[], object]] = {
                "forward": lambda: torch.conv2d(x, weight, padding=1),  # noqa: B023 - run at once
                "input": lambda: back(grad, x, weight, *how, [True, False, False]),  # noqa: B023
                "weight": lambda: back(grad, x, weight, *how, [False, True, False]),  # noqa: B023
            }
            row: dict[str, Any] = {"name": f"convolution {inputs} to {outputs}", "way": way}
            try:
                times = measure(runs, sweep=False, repeats=3)
                row |= {part: statistics.median(ms) for part, ms in times.items()}
            except Exception as failure:  # noqa: BLE001 - what fails is a result
                row["outcome"] = str(failure).splitlines()[0][:200]
            rows.append(row)
            say(str(row))
    return rows


def shortening_rows() -> list[dict[str, Any]]:
    """Bringing projections and gradients to 16 bits."""
    rows = []
    for name in ("self 128x16", "self 384x20"):
        case = Attention(deblur_attention.SHAPES[ATTENTION[name]], "halves")
        runs = {"shorten": case.shorten, "shorten_grad": case.shorten_grad}
        times = measure(runs, sweep=False, repeats=REPEATS)
        rows += [
            {"name": name, "way": way, "ms": statistics.median(ms)} for way, ms in times.items()
        ]
    return rows


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--limit-s", type=float, default=110.0)
    parser.add_argument("--only", nargs="+", help="Settings, or 'library'.")
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.compile is not None:
        job = jobs()[options.compile]
        setting_on(job.setting)
        case_of(job, small=True)(job.kind, job.cut)
        torch.cuda.synchronize()
        return
    if options.smoke:
        high, low = split(torch.randn(1000), torch.float32)
        assert float(low.abs().max()) < 4e-3, "the second part is what the first leaves out"
        say(f"{len(jobs())} jobs in {len(list(groups({})))} groups")
        write({"smoke": True, "jobs": len(jobs()), "high": float(high.sum())}, options.output)
        return
    until_s = time.monotonic() + options.limit_s
    report: dict[str, Any] = {
        "what": "kernels of VRT at full size in numbers of four bytes; null is the cut in use",
        "hardware": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    failed = compile_all()
    report["not_compiled"] = [f"{jobs()[number]}: {said}" for number, said in failed.items()]
    say(f"compiled, {until_s - time.monotonic():.0f} s left; failed: {report['not_compiled']}")
    write(report, options.output)
    for name, rows in (
        ("shortening", shortening_rows),
        ("products", product_rows),
        ("convolutions", convolution_rows),
    ):
        try:
            report[name] = rows()
        except Exception as failure:  # noqa: BLE001 - what fails is a result
            report[name] = str(failure).splitlines()[:1]
        write(report, options.output)
        torch.cuda.empty_cache()
        say(f"{name} done, {until_s - time.monotonic():.0f} s left")
    report["rows"] = []
    for group in groups(failed):
        if time.monotonic() > until_s:
            say(f"no time for {group[0]}")
            break
        setting_on(group[0].setting)
        try:
            report["rows"] += time_group(group)
        except Exception as failure:  # noqa: BLE001 - what fails is a result
            report["rows"].append({**group[0]._asdict(), "outcome": str(failure)[:200]})
        write(report, options.output)
        torch.cuda.empty_cache()
        say(str(report["rows"][-len(group) :]))


if __name__ == "__main__":
    main()
