"""Small runs made by hand: steps whose parts are known to the microsecond, and readings."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pitstop.doctor.facts import Facts, facts_of
from pitstop.doctor.readings import CacheUse
from pitstop.records.distribution import Distribution
from pitstop.records.host.held import HeldMemory
from pitstop.records.host.memory import GpuLoad, HostLoad, MemoryReading, TreeMemory
from pitstop.records.run import (
    Attempt,
    Block,
    Ending,
    Event,
    RankRecord,
    Reading,
    RunRecord,
    ScalarSeries,
    StepTable,
)
from pitstop.records.script import (
    KINDS,
    Compiled,
    HostLine,
    HostLines,
    Kernels,
    LoaderSetup,
    Owners,
    Setup,
    SyncLine,
    Syncs,
    Work,
    WorkerTimes,
)

Us = float | Sequence[float] | np.ndarray
Path = tuple[str, ...]
GIB = 1 << 30

KIND_OF = {record_type: kind for kind, record_type in KINDS.items()} | {
    MemoryReading: "memory",
    HeldMemory: "held",
    HostLoad: "load",
    CacheUse: "cache",
}


def run_of(*ranks: RankRecord, source: str = "run") -> RunRecord:
    return RunRecord(source=source, ranks=ranks)


def facts(parts: Mapping[Any, Us], **rest: Any) -> Facts:
    return facts_of(rank(parts, **rest))


def rank(
    parts: Mapping[Any, Us],
    *,
    steps: int = 100,
    unaccounted: Us = 0,
    apart: Mapping[str, Mapping[int, int]] | None = None,
    device: Mapping[Any, Us] | None = None,
    readings: Sequence[object] = (),
    applied: Mapping[str, Mapping[str, Any]] | None = None,
    scalars: Mapping[str, Sequence[float]] | None = None,
    samples: float | None = 4,
    micro_steps: float | None = 1,
    number: int = 0,
    world: int = 1,
    about: Mapping[str, Any] | None = None,
) -> RankRecord:
    """Make a rank whose steps have these parts: one time for all steps, or one a step.

    `apart` gives what lies apart by name and step; `device` the device's times by part.
    """
    paths = tuple((name,) if isinstance(name, str) else name for name in parts)
    host = _columns(parts.values(), steps)
    top = [place for place, path in enumerate(paths) if len(path) == 1]
    wall = host[:, top].sum(axis=1) + _columns([unaccounted], steps)[:, 0]
    on_device = np.full_like(host, np.nan)
    device_wall = np.full(steps, np.nan)
    if device is not None:
        for name, us in device.items():
            path = (name,) if isinstance(name, str) else name
            on_device[:, paths.index(path)] = _columns([us], steps)[:, 0]
        device_wall = wall.copy()
    outside_us, events = _apart(apart or {}, steps, wall)
    table = StepTable(
        paths=paths,
        attempt=np.zeros(steps),
        index=np.arange(steps, dtype=float),
        start_us=np.cumsum(wall + outside_us) - wall - outside_us,
        wall_us=wall,
        outside_us=outside_us,
        samples=np.full(steps, np.nan if samples is None else samples),
        micro_steps=np.full(steps, np.nan if micro_steps is None else micro_steps),
        host_us=host,
        device_wall_us=device_wall,
        device_us=on_device,
    )
    written = [_reading(reading) for reading in readings]
    for setting, proof in (applied or {}).items():
        written.append(_raw("applied", {"setting": setting, "proof": dict(proof)}))
    return RankRecord(
        attempts=(_attempt(number, world, about or {}),),
        paths=paths,
        blocks=(_block(table),),
        steps=table,
        scalars={
            name: ScalarSeries(step=np.arange(len(values), dtype=float), value=np.array(values))
            for name, values in (scalars or {}).items()
        },
        events=tuple(events),
        readings=tuple(written),
        ending=Ending(status="finished", reason="", steps=steps, at_us=0),
    )


def noisy(mean_us: float, steps: int, seed: int, spread: float = 0.2) -> np.ndarray:
    """Times that vary as those of real steps do: never below zero, with a tail."""
    shape = 1 / spread**2
    return np.random.default_rng(seed).gamma(shape, mean_us / shape, steps).round()


def _columns(columns: Any, steps: int) -> np.ndarray:
    filled = [np.broadcast_to(np.asarray(us, dtype=float), (steps,)) for us in columns]
    return np.stack(filled, axis=1) if filled else np.zeros((steps, 0))


def _apart(
    apart: Mapping[str, Mapping[int, int]], steps: int, wall: np.ndarray
) -> tuple[np.ndarray, list[Event]]:
    spent, events = np.zeros(steps), []
    for name, by_step in apart.items():
        for step, us in by_step.items():
            start = int(wall[:step].sum() + spent.sum())
            events.append(
                Event(attempt=0, name=name, step=step, start_us=start, wall_us=us, detail={})
            )
            spent[step] += us
    return spent, events


def _attempt(number: int, world: int, about: Mapping[str, Any]) -> Attempt:
    return Attempt(
        schema=1,
        started_unix_s=None,
        rank=number,
        local_rank=number,
        world_size=world,
        host=None,
        pid=None,
        python=None,
        torch=None,
        command=(),
        about=about,
    )


def _block(table: StepTable) -> Block:
    wall = Distribution.of(int(us) for us in table.wall_us)
    return Block(
        attempt=0,
        first=0,
        last=max(0, len(table) - 1),
        start_us=0,
        outside_us=int(table.outside_us.sum()),
        samples=None,
        micro_steps=None,
        broken=0,
        wall=wall,
        unaccounted=Distribution.of([]),
        device_wall=None,
        spans={},
    )


def _reading(reading: object) -> Reading:
    if isinstance(reading, Reading):
        return reading
    return _raw(KIND_OF[type(reading)], asdict(reading))  # type: ignore[call-overload]


def _raw(kind: str, values: Mapping[str, Any]) -> Reading:
    # Nobody knows when: in every window of time that is asked for.
    return Reading(attempt=0, kind=kind, at_us=None, values=values)


def raw(kind: str, **values: Any) -> Reading:
    return _raw(kind, values)


LOADER = LoaderSetup(
    dataset="Pictures",
    workers=4,
    prefetch=2,
    batch_size=4,
    pinned=True,
    persistent=True,
    start_method="fork",
    length=50,
    passes=2,
    batches=100,
    trains=True,
)

SETUP = Setup(
    device="cuda:0",
    device_name="NVIDIA H200",
    models=("Net",),
    optimizers=("AdamW(foreach)",),
    parameters=1_000_000,
    parameter_dtypes={"float32": 1_000_000},
    autocast="bfloat16",
    tf32=True,
    scaler=False,
    compiled=False,
    wrapper=None,
    recomputes=False,
    cudnn_benchmark=None,
    anomaly_detection=False,
    threads=1,
    samples_per_step=4.0,
    total_steps=None,
    loaders=(LOADER,),
)

ON_CPU = replace(
    SETUP,
    device="cpu",
    device_name=None,
    autocast=None,
    tf32=None,
    loaders=(replace(LOADER, pinned=False),),
)

KERNELS = Kernels(
    step=1_000_000,
    wall_us=20_000.0,
    launches=500,
    busy_us=9_500.0,
    matmul_us=7_000.0,
    tensor_core_us=6_500.0,
    other_us=2_500.0,
    copy_to_device_us=100.0,
    copy_to_host_us=0.0,
    sync_calls=0,
    sync_us=0.0,
    top=(),
)

WORK = Work(
    step=1_000_001,
    flops=10**12,
    flops_by_dtype={"bfloat16": 10**12},
    unaligned_flops=0,
    small_flops=0,
    bytes_moved=10**10,
    pointwise_bytes=10**9,
    pointwise_bytes_fused=5 * 10**8,
    operations=1_000,
    left_out=0,
)

OWNERS = Owners(
    device="cuda:0",
    parameters_bytes=GIB,
    gradients_bytes=GIB,
    optimizer_bytes=2 * GIB,
    peak_bytes=70 * GIB,
    reserved_bytes=72 * GIB,
    total_bytes=80 * GIB,
    alloc_retries=0,
    inactive_split_bytes=GIB,
)

COMPILED = Compiled(
    step=100,
    graphs=3,
    graph_breaks=0,
    recompiles_after_warm_up=0,
    compile_us=1_000_000,
    compile_after_warm_up_us=0,
    reasons=(),
)

WORKER = WorkerTimes(
    pid=7,
    worker=0,
    batches=25,
    read_us=900_000,
    collate_us=100_000,
    alive_us=1_050_000,
    read_bytes=50 << 20,
    cpu_us=950_000,
    files=("/data/city/a/1.png", "/data/city/b/2.png", "/usr/lib/x.so"),
)

CACHE = CacheUse(
    budget_bytes=GIB,
    copies=1,
    policy="keep",
    order="shuffled",
    items=172,
    dataset_items=1_000,
    hits=0,
    misses=1_000,
)


def cache_after(first: CacheUse, *, hits: int, misses: int) -> list[CacheUse]:
    """The same cache at the end of its first pass, and later."""
    later = replace(first, hits=first.hits + hits, misses=first.misses + misses)
    return [replace(first, misses=500), first, later]


def host_line(text: str, samples: int, *, part: str = "host", calls: str | None = None) -> HostLine:
    return HostLine(
        part=part,
        file="/home/me/train.py",
        line=zlib.crc32(text.encode()) % 10_000,  # one of its own, and the same in every run
        function="main",
        text=text,
        samples=samples,
        calls=calls,
    )


def host_lines(*lines: HostLine) -> HostLines:
    return HostLines(samples=10_000, every_us=5_000, lines=lines)


def syncs(line: HostLine, total_us: int, steps: int = 90) -> Syncs:
    entry = SyncLine(
        file=line.file,
        line=line.line,
        text=line.text,
        operation="item",
        calls=steps,
        total_us=total_us,
    )
    return Syncs(steps=steps, calls=steps, total_us=total_us, lines=(entry,))


def memory(at_s: float, tree_bytes: int, own_bytes: int, **rest: Any) -> MemoryReading:
    values: dict[str, Any] = {
        "devices": (),
        "host_total_bytes": 64 * GIB,
        "host_available_bytes": 60 * GIB,
        "cgroup_limit_bytes": None,
        "cgroup_usage_bytes": None,
        "cgroup_working_bytes": None,
        "pinned_bytes": None,
        "shm_used_bytes": None,
        "shm_total_bytes": None,
        "cost_s": 0.01,
        "notes": (),
    } | rest
    tree = TreeMemory(
        basis="pss", tree_bytes=tree_bytes, own_bytes=own_bytes, processes=5, unreadable=0
    )
    return MemoryReading(at_s=at_s, tree=tree, **values)


def gpu_load(**rest: Any) -> GpuLoad:
    values: dict[str, Any] = {
        "index": 0,
        "busy_share": 1.0,
        "memory_busy_share": None,
        "memory_used_bytes": None,
        "memory_total_bytes": None,
        "sm_clock_hz": 1.98e9,
        "memory_clock_hz": None,
        "power_w": None,
        "power_limit_w": None,
        "temperature_c": 60.0,
        "throttle_reasons": (),
        "processes": 1,
        "other_pids": (),
    } | rest
    return GpuLoad(**values)


def load(*gpus: GpuLoad, **rest: Any) -> HostLoad:
    values: dict[str, Any] = {
        "at_s": 0.0,
        "window_s": 1.0,
        "tree_cpu_cores": 2.0,
        "host_cpu_cores": 2.5,
        "usable_cores": 16.0,
        "throttled_share": 0.0,
        "tree_read_bytes_per_s": None,
        "tree_write_bytes_per_s": None,
        "disk_read_bytes_per_s": None,
        "disk_write_bytes_per_s": None,
        "cost_s": 0.01,
        "notes": (),
    } | rest
    return HostLoad(gpus=gpus, **values)
