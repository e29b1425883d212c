"""A machine as text for a terminal: what it is, what it reaches, what follows, what is missing."""

from rich.console import Group, RenderableType
from rich.text import Text

from pitstop.records.host.machine import CopyRate, Machine, MatrixRate, VolumeRead
from pitstop.records.quantity import Measured
from pitstop.records.units import bytes_text, rate_text, seconds_text
from pitstop.report.terminal_tables import sum_table, titled_lines

Row = tuple[str, str, str]


def machine_report(machine: Machine) -> RenderableType:
    """Lay out a machine: result first, evidence second, next command last."""
    parts: list[RenderableType] = [Text(headline(machine), style="bold")]
    for title, rows in (
        ("ceilings", ceiling_rows(machine)),
        ("advice", [(a.setting, a.value, a.arithmetic) for a in machine.advice]),
    ):
        if rows:
            parts += [Text(), Text(title, style="bold"), sum_table(rows)]
    parts += titled_lines("notes", machine.notes)
    parts += [Text(), Text(_closing(machine))]
    return Group(*parts)


def headline(machine: Machine) -> str:
    """Say in one line what the machine is."""
    gpus = ", ".join(sorted({gpu.name for gpu in machine.gpus})) or "no GPU"
    if len(machine.gpus) > 1:
        gpus = f"{len(machine.gpus)} x {gpus}"
    return ", ".join((_cores(machine), _memory(machine), gpus, _versions(machine)))


def ceiling_rows(machine: Machine) -> list[Row]:
    """List every measured rate with how it was taken."""
    rows = [_matrix_row(entry) for entry in machine.matrix_rates]
    rows += [_copy_row(entry) for entry in machine.copy_rates]
    for entry in machine.decode_rates:
        size = f"{entry.width}x{entry.height}, {bytes_text(entry.encoded_bytes)} each, one core"
        pixels = rate_text(entry.pixels_per_s, "pixel/s")
        rows.append(_row(f"{entry.codec.upper()} decoding", entry.images, f"{size}, {pixels}"))
    if machine.volume is not None:
        rows += [_read_row(read) for read in machine.volume.reads]
    return rows


def spread_text(rate: Measured) -> str:
    """Say how far repeats differ, or that there was only one."""
    if rate.samples == 1:
        return "one reading"
    low, high = rate_text(rate.low, rate.unit), rate_text(rate.high, rate.unit)
    return f"{low} to {high} in {rate.samples} readings"


def _row(name: str, rate: Measured, how: str) -> Row:
    return name, rate_text(rate.value, rate.unit), f"{how}; {spread_text(rate)}"


def _matrix_row(entry: MatrixRate) -> Row:
    threads = f", {entry.threads} threads" if entry.threads is not None else ""
    how = f"{entry.size} x {entry.size}{threads}"
    return _row(f"{entry.dtype} products, {entry.device}", entry.rate, how)


def _copy_row(entry: CopyRate) -> Row:
    size = bytes_text(entry.size_bytes)
    name = {
        "host": "host memory, one thread",
        "device": f"memory of {entry.device}",
        "pinned to device": f"pinned host to {entry.device}",
        "pageable to device": f"pageable host to {entry.device}",
    }[entry.route]
    both = ", read and write both counted" if entry.route in {"host", "device"} else ""
    return _row(name, entry.rate, f"blocks of {size}{both}")


def _read_row(read: VolumeRead) -> Row:
    cache = "page cache dropped" if read.cache == "dropped" else read.cache
    how = f"{bytes_text(read.read_bytes)} from {read.files} files, one reader, {cache}"
    if read.files_per_s is not None:
        how += f", {rate_text(read.files_per_s.value, read.files_per_s.unit)}"
    return _row(f"dataset, {read.order}", read.rate, how)


def _cores(machine: Machine) -> str:
    cpu = machine.cpu
    usable = "unknown" if cpu.usable_cores is None else f"{cpu.usable_cores:g}"
    model = f" of {cpu.model}" if cpu.model else ""
    limited = cpu.logical_cores is not None and cpu.usable_cores != cpu.logical_cores
    return f"{usable} usable cores{model}" + (f" ({cpu.logical_cores} in all)" if limited else "")


def _memory(machine: Machine) -> str:
    ram = machine.ram
    if ram.cgroup_limit_bytes is not None:
        return f"memory limited to {bytes_text(ram.cgroup_limit_bytes)}"
    return "memory unknown" if ram.total_bytes is None else f"{bytes_text(ram.total_bytes)} memory"


def _versions(machine: Machine) -> str:
    software = machine.software
    torch = f"torch {software.torch}" if software.torch else "no torch"
    return f"Python {software.python}, {torch}"


def _closing(machine: Machine) -> str:
    took = f"measured in {seconds_text(machine.took_s)}"
    if machine.volume is None:
        return f"{took}; next: pitstop machine --data PATH times the volume your dataset lies on"
    return f"{took}; next: pitstop config check CONFIG compares your settings with these limits"
