"""Runs made of fixed numbers, written through the probe's own writer: the same to the byte.

`slow` waits for data and checks its loss on every step, on a device; `fixed` is the same without
the wait; `ranks` has four ranks, one of them slow. Memory, load, loader, cache, modules, settings
and pictures are there as real runs write them.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from PIL import Image

from pitstop.records.host.memory import DeviceMemory
from pitstop.records.loader import CacheReading, LoaderReading, TuningReading, TuningTry
from pitstop.records.pictures import PictureCell, PictureRow, Pictures, write_pictures
from pitstop.records.script import Modules, ModuleTime
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock, FakeDevice
from tests.many_ranks import Slow, slow_host, write_ranks
from tests.unit.doctor.records import (
    COMPILED,
    GIB,
    KERNELS,
    OWNERS,
    SETUP,
    WORK,
    WORKER,
    gpu_load,
    load,
    memory,
)

STEPS = 300
NASTY = "<script>alert('街道')</script>"


def wave(number: int, period: int, size: int) -> int:
    """A wobble that is the same everywhere: whole numbers of a sine."""
    return round(size * math.sin(2 * math.pi * number / period))


def write_run(
    folder: Path, *, steps: int = STEPS, wait_us: int = 18_000, rank: int = 0, world: int = 1,
    backward_us: int = 14_000, readings: bool = True, name: str = "street-clips",
) -> Path:  # fmt: skip
    """Write one rank of a run whose every number follows from its arguments."""
    time = FakeClock(1_000_000)
    path = folder / f"rank-{rank}.jsonl"
    writer = RecordWriter(str(path), about={"name": name}, now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us, device=FakeDevice(time, lag_us=500))
    with clock.outside_step("start-up"):
        time.advance(2_400_000)
    for number in range(steps):
        _step(clock, time, number, wait_us=wait_us, backward_us=backward_us)
        if number % 10 == 9:
            loss = 0.05 + 0.4 * math.exp(-number / 90) + wave(number, 70, 900) / 1e5
            writer.scalars(number, {"loss": loss, "lr": 2e-4})
        if number % 100 == 99:
            with clock.outside_step("evaluation"):
                time.advance(900_000 + 1_000 * number)
            writer.scalars(number, {"eval/psnr": 24 + number / 60, "eval/ssim": 0.9})
            with clock.outside_step("checkpoint"):
                time.advance(120_000)
        if readings and number % 20 == 0:
            _host_readings(writer, time, number)
    if readings:
        _last_readings(writer)
    clock.close()
    writer.close()
    fix_head(path, rank=rank, world=world)
    return path


def _step(clock: Clock, time: FakeClock, number: int, *, wait_us: int, backward_us: int) -> None:
    clock.begin_step()
    with clock.span("data"):
        slow = 60_000 if number in (120, 121) else 0
        time.advance(wait_us + wave(number, 23, wait_us // 5) + slow)
    with clock.span("copy"):
        time.advance(700)
    with clock.span("forward"):
        for part, took_us in (("spike", 2_000), ("fusion", 1_200), ("stages", 4_800)):
            with clock.span(part):
                time.advance(took_us + wave(number, 31, 90))
                if part == "stages":
                    with clock.span("attention"):
                        time.advance(1_500)
        time.advance(150)
    with clock.span("loss"):
        time.advance(900)
    with clock.span("backward"):
        time.advance(backward_us + wave(number, 17, 400))
    with clock.span("optimizer"):
        time.advance(1_600)
    time.advance(750)
    clock.count(samples=8)


def _host_readings(writer: RecordWriter, time: FakeClock, number: int) -> None:
    device = DeviceMemory(
        device="cuda:0",
        total_bytes=80 * GIB,
        allocated_bytes=20 * GIB + number * 40_000_000,
        reserved_bytes=34 * GIB,
        peak_allocated_bytes=33 * GIB,
        peak_reserved_bytes=36 * GIB,
        alloc_retries=0,
        ooms=0,
    )
    at_s = time.now_us() / 1e6
    held = 6 * GIB + number * 5_000_000
    writer.reading("memory", _plain(memory(at_s, held, 2 * GIB, devices=(device,))))
    gpu = gpu_load(busy_share=(55 + wave(number, 90, 20)) / 100, power_w=310.0)
    writer.reading("load", _plain(load(gpu, at_s=at_s, tree_read_bytes_per_s=4.2e7 + number)))
    stages = {"read": 40_000, "decode": 190_000, "transform": 60_000, "collate": 9_000}
    writer.reading(
        "loader",
        _plain(
            LoaderReading(
                batches=20, workers=4, prefetch=2, stages_us=stages, busy_us=300_000,
                cpu_us=260_000, queue_us=12_000, wait_us=360_000, short_us=350_000,
                largest_bytes=12_582_912,
            )
        ),
    )  # fmt: skip
    hits = number * 6
    writer.reading(
        "cache",
        _plain(
            CacheReading(
                policy="epoch", backing="shared memory", items=120 + number, used_bytes=GIB,
                budget_bytes=2 * GIB, hits=hits, misses=160 + number, evictions=0, too_large=0,
            )
        ),
    )  # fmt: skip


def _last_readings(writer: RecordWriter) -> None:
    tries = tuple(
        TuningTry(
            workers=workers, prefetch=2, batches=30, own_us=31_000, wait_us=wait, short_us=wait,
            busy_us=70_000, cpu_us=61_000, late_share=0.9, batch_bytes=12_582_912,
        )
        for workers, wait in ((2, 31_000), (4, 18_000))
    )  # fmt: skip
    tuned = TuningReading(tries=tries, workers=4, prefetch=2, reason="no core is left", spent_s=8.5)
    modules = Modules(
        step=5,
        modules=tuple(
            ModuleTime(name=name, kind=kind, forward_us=forward, backward_us=backward)
            for name, kind, forward, backward in (
                ("spike_branch", "SpikeBranch", 2_000, 4_100),
                ("fusion", "Fusion", 1_200, None),
                ("stages", "Stages", 6_300, 9_800),
                (NASTY, "Conv2d", 40, 60),
            )
        ),
    )
    setup = replace(SETUP, models=("VideoRestorer", NASTY), total_steps=150_000)
    slow_worker = replace(WORKER, pid=8, worker=1, read_us=1_000_000, alive_us=1_200_000)
    for kind, reading in (
        ("loader_tuning", tuned), ("modules", modules), ("setup", setup), ("owners", OWNERS),
        ("work", WORK), ("kernels", replace(KERNELS, step=7)), ("compiled", COMPILED),
        ("worker", WORKER), ("worker", slow_worker),
    ):  # fmt: skip
        writer.reading(kind, _plain(reading))
    proof = {"kind": "adamw", "fused": True, "num_parameters": 1_522_165, "state_bytes": None}
    writer.reading("applied", {"setting": "optimizer.kind", "proof": proof})
    writer.reading("warning", {"step": 120, "about": "data", "text": f"slow read of {NASTY}.png"})


def _plain(reading: Any) -> Mapping[str, Any]:
    return asdict(reading)


def fix_head(path: Path, *, rank: int, world: int) -> None:
    """Put fixed text where the writer names its process and its moment."""
    first, _, rest = path.read_bytes().partition(b"\n")
    head = json.loads(first) | {
        "unix_s": 1_700_000_000.0, "pid": 4321, "host": "host", "python": "3.11.7",
        "torch": "2.13.0", "command": ["train.py", "--config", "街道.yaml"],
        "rank": rank, "local_rank": rank, "world_size": world,
    }  # fmt: skip
    path.write_bytes(json.dumps(head, separators=(",", ":")).encode() + b"\n" + rest)


def slow(folder: Path) -> Path:
    """A run on one device that waits for data, with everything a record can hold."""
    write_run(folder)
    _pictures(folder)
    return folder


def fixed(folder: Path) -> Path:
    """The same work without the wait."""
    write_run(folder, wait_us=900)
    return folder


def ranks(folder: Path, *, world: int = 4, missing: int | None = None) -> Path:
    """Ranks of which the second is slow; one of them may have left no record."""
    for rank in range(world):
        if rank != missing:
            slow = 9_000 if rank == 1 else 0
            write_run(folder, steps=120, wait_us=2_000, rank=rank, world=world,
                      backward_us=14_000 + slow, readings=False)  # fmt: skip
    return folder


def many_ranks(folder: Path) -> Path:
    """Twenty-four ranks on three hosts, of which one host becomes slow and one rank always is."""
    slow = (
        slow_host(1, part="forward", excess_us=60_000, first=768),
        Slow(ranks=(20,), part="data", excess_us=50_000),
    )
    write_ranks(folder, ranks=24, steps=1_400, slow=slow, seed=3)
    return folder


def _pictures(folder: Path) -> None:
    place = folder / "pictures"
    place.mkdir(parents=True)
    cells = []
    for column, caption in enumerate(("blurry", "restored", "sharp", "spike view")):
        picture = Image.new("RGB", (96, 64))
        picture.putdata(
            [((x * 2 + 40 * column) % 256, (y * 3) % 256, (x + y) % 256)
             for y in range(64) for x in range(96)]
        )  # fmt: skip
        file = f"clip-3-frame-7-{column}.png"
        picture.save(place / file)
        cells.append(PictureCell(caption=caption, file=file))
    row = PictureRow(
        title="街道 clip 3, frame 7", cells=tuple(cells), note="31.2 dB against 26.8 dB"
    )
    write_pictures(folder, Pictures(rows=(row,)))
