"""Who holds device memory at its peak, and whether it grows: from what was recorded."""

from collections.abc import Mapping
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.records.host.growth import WARM_UP_READINGS, Growth, steady_growth
from pitstop.records.host.held import HeldMemory
from pitstop.records.host.memory import DeviceMemory, MemoryReading
from pitstop.records.script import Owners
from pitstop.records.units import bytes_text, share_text

_REST: Final = "activations and temporary"


def device_holders(facts: Facts) -> str | None:
    """Name the holders of device memory at its peak, the largest first; None without a device.

    What is kept from step to step is known; the rest of the peak is what steps make.
    """
    devices = _devices(facts)
    peak = _peak_bytes(facts, [device for _, device in devices])
    held = _held(facts)
    if not peak or held is None:
        return None
    rest = max(0, peak - sum(held.values()))
    ranked = sorted({**held, _REST: rest}.items(), key=lambda item: -item[1])
    listed = ", ".join(
        f"{owner} {bytes_text(size)} ({share_text(size / peak)})" for owner, size in ranked if size
    )
    return (
        f"device memory at its peak is {bytes_text(peak)}: {listed}{_growth_text(facts, devices)}"
    )


def _peak_bytes(facts: Facts, devices: list[DeviceMemory]) -> int | None:
    if devices:
        return max(device.peak_allocated_bytes for device in devices)
    owners = facts.readings.last(Owners)
    return None if owners is None else owners.peak_bytes


def _held(facts: Facts) -> Mapping[str, int] | None:
    held, owners = facts.readings.last(HeldMemory), facts.readings.last(Owners)
    if held is None and owners is None:
        return None
    source = held or owners
    assert source is not None
    known = {
        "parameters": source.parameters_bytes,
        "gradients": source.gradients_bytes,
        "optimizer state": source.optimizer_bytes,
    }
    if held is not None:
        known |= {"averaged weights": held.averaged_bytes, "teacher": held.teacher_bytes}
    return known


def _devices(facts: Facts) -> list[tuple[float, DeviceMemory]]:
    """Give what each reading says of the device that this rank uses most, and when it was."""
    return [
        (reading.at_s, max(reading.devices, key=lambda device: device.peak_allocated_bytes))
        for reading in facts.readings.all(MemoryReading)
        if reading.devices
    ]


def _growth_text(facts: Facts, devices: list[tuple[float, DeviceMemory]]) -> str:
    settled = devices[WARM_UP_READINGS:]
    at_s = [moment for moment, _ in settled]
    growth = steady_growth(at_s, [device.allocated_bytes for _, device in settled])
    per_step = None if growth is None else _per_step(facts, growth)
    if per_step is None:
        return ""
    return (
        f"; what tensors hold between steps grows by {bytes_text(per_step)} a step: look for "
        "losses or outputs that are kept with their graph"
    )


def _per_step(facts: Facts, growth: Growth) -> float | None:
    table = facts.record.steps
    if table is None or not len(table):
        return None
    passed_s = float((table.wall_us + table.outside_us).sum()) / 1e6
    return growth.rate * passed_s / len(table)
