"""Memory by owner and over time, and how busy GPU, processor and disk were."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pitstop.records.host.memory import HostLoad, MemoryReading
from pitstop.records.script import Owners
from pitstop.records.units import (
    NOT_MEASURED,
    bytes_text,
    count_text,
    digits,
    rate_text,
    seconds_text,
    share_text,
)
from pitstop.report.page.blocks import (
    Block,
    Chart,
    LegendEntry,
    Section,
    Table,
    named_columns,
    number_cell,
    section_of,
    text_cell,
)
from pitstop.report.page.charts import Axes, Line, Segment, bar, legend_of, lines
from pitstop.report.page.palette import HATCHED
from pitstop.report.page.run import RunView, quartiles
from pitstop.report.page.series import Series, shortened

Named = Sequence[tuple[str, str, Sequence[float | None]]]
"""Name, colour and values of a line."""

_MOST_DEVICES: Final = 8
_GPU_LINES: Final = 5
_LIMIT: Final = "control group's limit"
_COLOURS: Final = ("c2", "c7", "c0", "c4", "c9", "c1", "c3", "c5")


def since(seconds: float) -> str:
    """A moment, counted from the first reading."""
    return "start" if seconds <= 0 else f"+{seconds_text(seconds)}"


def memory_section(view: RunView) -> Section | None:
    """Who holds memory, and how that changed."""
    readings = view.readings("memory", MemoryReading)
    loads = view.readings("load", HostLoad)
    owners = view.readings("owners", Owners)
    blocks: list[Block] = []
    if owners:
        blocks += _owners(owners[-1])
    if not any(one.devices for one in readings):
        blocks += _driver_memory(loads)
    if readings:
        blocks += _memory_charts(readings)
        blocks.append(_memory_table(readings))
    return section_of("memory", "Memory", blocks)


def _owners(owners: Owners) -> Iterable[Block]:
    held = [
        ("parameters", owners.parameters_bytes, "c2"),
        ("gradients", owners.gradients_bytes, "c4"),
        ("optimizer state", owners.optimizer_bytes, "c7"),
    ]
    if owners.activations_bytes is not None:
        held.append(("activations and scratch", owners.activations_bytes, "c0"))
    total = sum(size for _, size, _ in held)
    if not total:
        return
    held += _beyond_the_peak(owners, total)
    whole = sum(size for _, size, _ in held)
    segments = [
        Segment(
            name=name,
            share=size / whole,
            colour=colour,
            text=f"{bytes_text(size)}, {share_text(size / whole)}",
        )
        for name, size, colour in held
    ]
    note = (
        "Measured; activations and scratch are what the measured peak holds beyond the others."
        if owners.peak_bytes is not None
        else "Measured. Activations: not measured, for this device does not count its memory."
    )
    caption = f"{bytes_text(total)} on {owners.device} by owner"
    if owners.peak_bytes is not None and owners.total_bytes is not None:
        caption = (
            f"The peak of a step on {owners.device} by owner: {bytes_text(total)} of "
            f"{bytes_text(owners.total_bytes)}"
        )
    yield Chart(
        caption=caption,
        svg=bar("memory-owners", f"Memory of {owners.device} by owner", segments),
        legend=legend_of(segments, sizes=True),
        note=note,
    )


def _beyond_the_peak(owners: Owners, held_bytes: int) -> Iterable[tuple[str, int, str]]:
    """What the device has beyond tensors, so that the bar ends at its limit."""
    reserved, total = owners.reserved_bytes, owners.total_bytes
    if owners.peak_bytes is None or reserved is None or total is None:
        return
    if reserved > held_bytes:
        yield "reserved beyond tensors", reserved - held_bytes, "c10"
    if total > max(reserved, held_bytes):
        yield "not reserved by this process", total - max(reserved, held_bytes), HATCHED


def _driver_memory(loads: Sequence[HostLoad]) -> Iterable[Chart]:
    """Device memory as the driver counts it: seen from outside the training process."""
    at_s = [one.at_s - loads[0].at_s for one in loads]
    for index in sorted({gpu.index for one in loads for gpu in one.gpus})[:_MOST_DEVICES]:
        found = [next((gpu for gpu in one.gpus if gpu.index == index), None) for one in loads]
        used = [None if gpu is None else gpu.memory_used_bytes for gpu in found]
        totals = _known([None if gpu is None else gpu.memory_total_bytes for gpu in found])
        how = f"as the driver counts it, whoever holds it; {_times(loads)}"
        axes = Axes(y_text=bytes_text, x_text=since, x_name="", binary=True)
        if totals and _known(used):
            left = bytes_text(max(totals) - max(_known(used)))
            how = f"{left} of {bytes_text(max(totals))} never used; {how}"
            axes = replace(axes, top=float(max(totals)))
        panel = _Panel(
            key=f"memory-gpu-{index}", title=f"Memory of GPU {index}", axes=axes, how=how
        )
        yield from _over_time(panel, at_s, [("in use", "c2", used)])


def _memory_charts(readings: Sequence[MemoryReading]) -> Iterable[Chart]:
    at_s = [one.at_s - readings[0].at_s for one in readings]
    axes = Axes(y_text=bytes_text, x_text=since, x_name="", binary=True)
    times = count_text(len(readings), "reading")
    basis = next((one.tree.basis for one in reversed(readings) if one.tree is not None), None)
    title, how = "Host memory of the process tree", f"measured as {basis}; {times}"
    host = _Panel(key="memory-host", title=title, axes=axes, how=how)
    # One reading is a number, not a course, and stands among the first figures.
    if len(readings) > 1:
        yield from _over_time(host, at_s, _tree_lines(readings))
    names = sorted({device.device for one in readings for device in one.devices})[:_MOST_DEVICES]
    for place, name in enumerate(names):
        found = [device for one in readings for device in one.devices if device.device == name]
        total = max(_known([device.total_bytes for device in found]), default=None)
        how = f"measured by torch's allocator; {times}"
        if total is not None:
            left = total - max(device.peak_reserved_bytes for device in found)
            how = f"{bytes_text(left)} of {bytes_text(total)} never reserved; {how}"
        # The scale ends at the limit, so that the room above the peak is what is left.
        to_limit = replace(axes, top=None if total is None else float(total))
        panel = _Panel(key=f"memory-{place}", title=f"Memory of {name}", axes=to_limit, how=how)
        yield from _over_time(panel, at_s, _device_lines(readings, name))


def _tree_lines(readings: Sequence[MemoryReading]) -> Named:
    trees = [one.tree for one in readings]
    return (
        ("all processes", "c2", [tree and tree.tree_bytes for tree in trees]),
        (
            "the training process",
            "c7",
            [None if tree is None else tree.own_bytes for tree in trees],
        ),
    )


def _device_lines(readings: Sequence[MemoryReading], name: str) -> Named:
    found = [next((d for d in one.devices if d.device == name), None) for one in readings]
    return (
        ("allocated", "c2", [None if one is None else one.allocated_bytes for one in found]),
        ("reserved", "c4", [None if one is None else one.reserved_bytes for one in found]),
        ("peak", "c0", [None if one is None else one.peak_reserved_bytes for one in found]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """A chart over time, before it has lines."""

    key: str
    title: str
    axes: Axes
    how: str


def _over_time(panel: _Panel, at_s: Sequence[float], named: Named) -> Iterable[Chart]:
    drawn = [
        Line(name=name, series=series, colour=colour)
        for name, colour, values in named
        if (series := _series(at_s, values)) is not None
    ]
    if not drawn:
        return
    legend = [LegendEntry(name=line.name, colour=line.colour) for line in drawn]
    yield Chart(
        caption=panel.title,
        svg=lines(panel.key, f"{panel.title} over time", drawn, panel.axes),
        note=panel.how,
        legend=tuple(legend) if len(drawn) > 1 else (),
        half=True,
    )


def _series(at_s: Sequence[float], values: Sequence[float | None]) -> Series | None:
    known = np.array([np.nan if value is None else value for value in values], dtype=float)
    series = shortened(np.array(at_s, dtype=float), known)
    return series if len(series) else None


def _memory_table(readings: Sequence[MemoryReading]) -> Table:
    """Kinds of host memory; what no reading has stands in the note."""
    last = readings[-1]
    kinds: dict[str, list[int | None]] = {
        "host, in use by anybody": [one.host_used_bytes for one in readings],
        _LIMIT: [one.cgroup_limit_bytes for one in readings],
        "control group's working set": [one.cgroup_working_bytes for one in readings],
        "pinned by torch": [one.pinned_bytes for one in readings],
        "shared memory in use": [one.shm_used_bytes for one in readings],
    }
    rows = []
    unknown = [name for name, values in kinds.items() if not _known(values)]
    for name, values in kinds.items():
        if known := _known(values):
            cells = [number_cell(bytes_text(v), v) for v in (min(known), max(known), values[-1])]
            rows.append((text_cell(name), *cells))
    host = f"the host has {bytes_text(last.host_total_bytes)}"
    notes = [f"Measured, {count_text(len(readings), 'reading')}", host]
    if _LIMIT in unknown:
        unknown.remove(_LIMIT)
        notes.append("no control group limits it")
    if unknown:
        notes.append(f"{NOT_MEASURED}: {', '.join(unknown)}")
    return Table(
        caption="Host memory in numbers",
        columns=named_columns("what", "lowest", "most", "at the end"),
        rows=tuple(rows),
        note="; ".join(notes) + ".",
    )


def _known(values: Sequence[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def load_section(view: RunView) -> Section | None:
    """How busy GPU, processor and disk were."""
    loads = view.readings("load", HostLoad)
    if not loads:
        return None
    at_s = [one.at_s - loads[0].at_s for one in loads]
    charts = [chart for panel, named in _panels(loads) for chart in _over_time(panel, at_s, named)]
    in_steps = view.loads_in_steps()
    where = " while the steps after warm-up ran" if in_steps else ""
    table = _load_table(in_steps or loads, where)
    blocks: list[Block] = [*charts] if table is None else [*charts, table]
    title = "GPU, processor and disk" if any(one.gpus for one in loads) else "Processor and disk"
    return section_of("load", title, blocks)


def _panels(loads: Sequence[HostLoad]) -> Iterable[tuple[_Panel, Named]]:
    times = _times(loads)
    gpus = sorted({gpu.index for one in loads for gpu in one.gpus})[:_MOST_DEVICES]
    yield (
        _Panel(
            key="load-gpu",
            title="GPU busy",
            axes=Axes(y_text=share_text, x_text=since, x_name="", top=1.0),
            how=f"share of the driver's sample period in which any kernel ran; {times}",
        ),
        [
            (f"GPU {index}", _COLOURS[place], [_gpu_busy(one, index) for one in loads])
            for place, index in enumerate(gpus)
        ],
    )
    usable = next((one.usable_cores for one in loads if one.usable_cores is not None), None)
    of = "" if usable is None else f"; {digits(usable)} are usable"
    yield (
        _Panel(
            key="load-cpu",
            title="Processor, in cores",
            axes=Axes(y_text=digits, x_text=since, x_name=""),
            how=f"{times}{of}",
        ),
        (
            ("this job", "c2", [one.tree_cpu_cores for one in loads]),
            ("everybody on the host", "c10", [one.host_cpu_cores for one in loads]),
        ),
    )
    yield (
        _Panel(
            key="load-disk",
            title="Storage",
            axes=Axes(y_text=lambda v: rate_text(v, "B/s"), x_text=since, x_name=""),
            how=times,
        ),
        (
            ("this job reads", "c2", [one.tree_read_bytes_per_s for one in loads]),
            ("this job writes", "c4", [one.tree_write_bytes_per_s for one in loads]),
            ("all disks, reading", "c10", [one.disk_read_bytes_per_s for one in loads]),
        ),
    )


def _times(loads: Sequence[HostLoad]) -> str:
    return f"measured, {count_text(len(loads), 'reading')}"


def _gpu_busy(load: HostLoad, index: int) -> float | None:
    return next((gpu.busy_share for gpu in load.gpus if gpu.index == index), None)


def _load_table(loads: Sequence[HostLoad], where: str) -> Table | None:
    gpus = [gpu for one in loads for gpu in one.gpus]
    lines_of: list[tuple[str, list[float | None], Callable[[float], str]]] = [
        ("GPU busy", [gpu.busy_share for gpu in gpus], share_text),
        ("GPU memory in use, by anybody", [gpu.memory_used_bytes for gpu in gpus], bytes_text),
        ("GPU power", [gpu.power_w for gpu in gpus], lambda v: rate_text(v, "W")),
        ("GPU clock", [gpu.sm_clock_hz for gpu in gpus], lambda v: rate_text(v, "Hz")),
        ("GPU temperature", [gpu.temperature_c for gpu in gpus], lambda v: f"{digits(v)} °C"),
        ("cores used by this job", [one.tree_cpu_cores for one in loads], digits),
        ("cores used by everybody", [one.host_cpu_cores for one in loads], digits),
        ("throttled by quota", [one.throttled_share for one in loads], share_text),
        ("read by this job", [one.tree_read_bytes_per_s for one in loads],
         lambda v: rate_text(v, "B/s")),
        ("written by this job", [one.tree_write_bytes_per_s for one in loads],
         lambda v: rate_text(v, "B/s")),
    ]  # fmt: skip
    rows, unknown = [], []
    for name, values, text in lines_of if gpus else lines_of[_GPU_LINES:]:
        spread = quartiles([np.nan if value is None else value for value in values])
        if spread is None:
            unknown.append(name)
            continue
        between = f"{text(spread[0])} to {text(spread[2])}"
        rows.append((text_cell(name), number_cell(text(spread[1]), spread[1]), text_cell(between)))
    if not rows:
        return None
    notes = [f"{_times(loads)}{where}"]
    notes += [] if gpus else ["no GPU was seen"]
    notes += [f"{NOT_MEASURED}: {', '.join(unknown)}"] if unknown else []
    return Table(
        caption="Load in numbers",
        columns=named_columns("what", "median", "IQR"),
        rows=tuple(rows),
        note="; ".join(notes),
    )
