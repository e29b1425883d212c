"""Records of many ranks, as the probe would have written them, with whoever is slow planted.

Every step is drawn: the parts of a rank's own work vary by a few percent, ranks differ by one,
some steps stall. All ranks exchange gradients in backward, so there each waits for the slowest, and
the wall clock of a step is the same everywhere. Files are laid out as `pitstop_probe.RecordWriter`
lays them out: rows, a block for every 256 steps, a timeline, readings, an end.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

BLOCK_STEPS = 256
RANKS_PER_HOST = 8
BEGAN_UNIX_S = 1_794_700_800.0  # 2026-11-15 00:00 UTC

# Mean of each part's own time: a step of about 0.2 s.
PARTS_US = {
    "data": 3_000,
    "copy": 2_000,
    "forward": 60_000,
    "loss": 3_000,
    "backward": 110_000,
    "clip": 2_000,
    "optimizer": 14_000,
}
INNER = ("forward", "encoder")
EXCHANGE_US = 4_000
REST_US = 900


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Somebody who takes longer, in some steps: a rank, or every rank of a host."""

    ranks: tuple[int, ...]
    part: str
    excess_us: int
    first: int = 0
    last: int = 10**9


def host_of(rank: int) -> str:
    return f"node-{rank // RANKS_PER_HOST:02d}"


def slow_host(number: int, **how: object) -> Slow:
    first = number * RANKS_PER_HOST
    return Slow(ranks=tuple(range(first, first + RANKS_PER_HOST)), **how)  # type: ignore[arg-type]


def write_ranks(
    folder: Path,
    *,
    ranks: int,
    steps: int,
    slow: Sequence[Slow] = (),
    seed: int = 0,
    on_device: bool = True,
) -> None:
    """Write a run of this many ranks."""
    folder.mkdir(parents=True)
    drawn = _Job(ranks=ranks, steps=steps, slow=slow, seed=seed)
    for rank in range(ranks):
        text = _rank_text(drawn, rank, on_device=on_device)
        (folder / f"rank-{rank}.jsonl").write_bytes(text)


class _Job:
    """Times of all ranks, drawn rank by rank: the slowest of each step is known beforehand."""

    def __init__(self, *, ranks: int, steps: int, slow: Sequence[Slow], seed: int) -> None:
        self.ranks, self.steps, self._slow, self._seed = ranks, steps, slow, seed
        self.slowest_us = np.zeros(steps, dtype=np.int64)
        for rank in range(ranks):
            np.maximum(self.slowest_us, self.own(rank).sum(axis=1), out=self.slowest_us)

    def own(self, rank: int) -> Times:
        """Own work of a rank, steps x parts."""
        random = np.random.default_rng([self._seed, rank])
        means = np.array(list(PARTS_US.values())) * random.normal(1.0, 0.01)
        times = means * random.lognormal(0.0, 0.04, (self.steps, len(PARTS_US)))
        names = list(PARTS_US)
        for _ in range(random.poisson(0.3)):  # a file system that hangs for a second or four
            times[random.integers(self.steps), names.index("data")] += random.uniform(1e6, 4e6)
        if rank == 0:
            times[::50, names.index("optimizer")] += 20_000  # the first rank also writes logs
        for slow in self._slow:
            if rank in slow.ranks:
                rows = slice(slow.first, slow.last + 1)
                more = random.normal(1.0, 0.1, len(times[rows]))
                times[rows, names.index(slow.part)] += slow.excess_us * np.maximum(0.2, more)
        return times.astype(np.int64)


def _rank_text(job: _Job, rank: int, *, on_device: bool) -> bytes:
    parts = job.own(rank)
    waits = job.slowest_us - parts.sum(axis=1) + EXCHANGE_US
    parts[:, list(PARTS_US).index("backward")] += waits
    inner = (parts[:, list(PARTS_US).index(INNER[0])] * 3) // 5
    host = np.column_stack((parts, inner))
    wall = parts.sum(axis=1) + REST_US
    starts = np.cumsum(wall) - wall
    lines = [_run_line(rank, job.ranks), *_span_lines(), *_layout_lines(host.shape[1])]
    for first in range(0, job.steps, BLOCK_STEPS):
        rows = slice(first, min(first + BLOCK_STEPS, job.steps))
        lines += _row_lines(first, wall[rows], host[rows], on_device=on_device)
        lines.append(_block_line(first, starts[rows], wall[rows], host[rows], on_device=on_device))
        lines.append(_exchange_line(int(starts[rows][-1])))
    end_us = int(wall.sum())
    ending = {"kind": "end", "status": "finished", "reason": "", "steps": job.steps}
    lines.append(json.dumps({**ending, "at_us": end_us}, separators=(",", ":")))
    return ("\n".join(lines) + "\n").encode()


def _run_line(rank: int, world: int) -> str:
    about = {
        "kind": "run",
        "schema": 2,
        "unix_s": BEGAN_UNIX_S + 0.01 * (rank % 7),
        "pid": 1000 + rank,
        "host": host_of(rank),
        "python": "3.11.7",
        "torch": "2.13.0",
        "command": ["train.py"],
        "rank": rank,
        "local_rank": rank % RANKS_PER_HOST,
        "world_size": world,
        "name": "generated",
    }
    return json.dumps(about, separators=(",", ":"))


def _span_lines() -> list[str]:
    names = list(PARTS_US)
    spans = [
        {"kind": "span", "id": n, "parent": None, "name": name} for n, name in enumerate(names)
    ]
    inner = {"kind": "span", "id": len(names), "parent": names.index(INNER[0]), "name": INNER[1]}
    return [json.dumps(span, separators=(",", ":")) for span in (*spans, inner)]


def _layout_lines(spans: int) -> list[str]:
    """Without a device, with its wall clock, and with its spans."""
    layouts = [{"kind": "layout", "id": n, "host": list(range(spans))} for n in range(3)]
    layouts[1]["device"], layouts[2]["device"] = [], list(range(spans))
    return [json.dumps(layout, separators=(",", ":")) for layout in layouts]


def _row_lines(first: int, wall: Times, host: Times, *, on_device: bool) -> list[str]:
    """One step a line; on a device its wall clock in all of them, its spans in every fourth."""
    lines = []
    for number, (us, spans) in enumerate(zip(wall.tolist(), host.tolist(), strict=True), first):
        text = ",".join(map(str, spans))
        if not on_device:
            lines.append(f"[0,{number},0,0,{us},4,1,{text}]")
        elif number % 4:
            lines.append(f"[1,{number},0,0,{us},4,1,{text},{us}]")
        else:
            lines.append(f"[2,{number},0,0,{us},4,1,{text},{us},{text}]")
    return lines


def _block_line(first: int, starts: Times, wall: Times, host: Times, *, on_device: bool) -> str:
    marked = np.arange(first, first + len(wall)) % 4 == 0
    top = len(PARTS_US)
    block = {
        "kind": "block",
        "first": first,
        "last": first + len(wall) - 1,
        "start_us": int(starts[0]),
        "outside_us": 0,
        "samples": 4 * len(wall),
        "micro_steps": len(wall),
        "broken": 0,
        "wall": _distribution(wall),
        "unaccounted": _distribution(wall - host[:, :top].sum(axis=1)),
        "device": _distribution(wall) if on_device else None,
        "spans": [
            [
                number,
                len(wall),
                _distribution(host[:, number]),
                _distribution(host[marked, number]) if on_device else None,
            ]
            for number in range(host.shape[1])
        ],
    }
    return json.dumps(block, separators=(",", ":"))


def _distribution(values: Times) -> list[object]:
    found, counts = np.unique(
        np.rint(np.log(values + 1.0) / np.log(1.04)).astype(np.int64), return_counts=True
    )
    flat = np.column_stack((found, counts)).ravel().tolist()
    return [len(values), int(values.sum()), int(values.min()), int(values.max()), flat]


def _exchange_line(at_us: int) -> str:
    reading = {
        "kind": "communication",
        "at_us": at_us,
        "backward_us": 110_000.0,
        "exchange_us": 30_000.0,
        "overlapped_us": 30_000.0 - EXCHANGE_US,
    }
    return json.dumps(reading, separators=(",", ":"))
