"""Rules on the machine under the run: others on it, and clocks that are held back."""

from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.doctor.thresholds import WORTH_A_WARNING, severity_of
from pitstop.records.host.machine import Machine
from pitstop.records.host.memory import GpuLoad, HostLoad
from pitstop.records.units import count_text, listing
from pitstop.records.verdict import Bound, Finding

# Another process in fewer readings came and went; it does not explain a whole run.
_MOST_OF_THE_TIME: Final = 0.5
# Cores that others must use, of all there are, on a host that has none to spare.
_OTHERS_CORES: Final = 0.25
# Readings are means of a second: a host with no idle core shows a little less than all of them.
_HOST_FULL: Final = 0.9
_MOST_NAMED: Final = 3

_ANOTHER_DEVICE: Final = "stop the other job, or use another device: CUDA_VISIBLE_DEVICES"

# The power cap is left out: a GPU at full work runs into it as it should.
_HELD_BACK: Final = ("hardware slowdown", "thermal (software)", "thermal (hardware)", "power brake")


def other_jobs(facts: Facts) -> Finding | None:
    """Report other processes on the same GPU, by pid, or on a host without a free core."""
    on_gpu = _on_gpu(facts, facts.readings.all(HostLoad))
    on_host = contention(facts)
    if on_gpu is None and on_host is None:
        return None
    return Finding(
        code="SHARE001",
        # A busy host may slow a run or not; a GPU that is shared is never the run's own.
        severity="info" if on_gpu is None else "warning",
        summary="another job uses the same device or host",
        evidence=(
            *(text for text in (on_gpu, on_host) if text is not None),
            *(_busiest(facts) if on_host is not None else ()),
        ),
        # How fast the run is alone was not measured.
        bound=None,
        remedy=remedy_for(facts, "SHARE001") if on_gpu is None else (_ANOTHER_DEVICE,),
    )


def _on_gpu(facts: Facts, loads: tuple[HostLoad, ...]) -> str | None:
    seen = [gpu.other_pids for gpu in _own_gpus(facts, loads) if gpu.other_pids is not None]
    with_others = [pids for pids in seen if pids]
    if not seen or len(with_others) < _MOST_OF_THE_TIME * len(seen):
        return None
    pids = sorted({pid for found in with_others for pid in found})
    readings = f"{len(with_others)} of {count_text(len(seen), 'reading')}"
    return f"on the same GPU in {readings}: pid {listing(pids)}"


def _busiest(facts: Facts) -> tuple[str, ...]:
    """Name the processes that kept the host busy, by their mean over all readings."""
    readings = [load.others for load in facts.readings.all(HostLoad) if load.others is not None]
    cores: dict[tuple[int, str], float] = {}
    for other in (other for reading in readings for other in reading):
        key = (other.pid, other.name)
        cores[key] = cores.get(key, 0.0) + other.cpu_cores / len(readings)
    first = sorted(cores.items(), key=lambda item: -item[1])[:_MOST_NAMED]
    named = [f"pid {pid} ({name}, {used:.1f} cores)" for (pid, name), used in first]
    return (
        (f"busiest in {count_text(len(readings), 'reading')}: {', '.join(named)}",) if named else ()
    )


def contention(facts: Facts) -> str | None:
    """Say how many cores other processes use on a host with none free; None where some are."""
    cores = _cores_all_busy(facts)
    others = [
        load.host_cpu_cores - load.tree_cpu_cores
        for load in facts.readings.all(HostLoad)
        if load.host_cpu_cores is not None and load.tree_cpu_cores is not None
    ]
    if cores is None or not others or float(np.median(others)) < _OTHERS_CORES * cores:
        return None
    used = float(np.median(others))
    return f"other processes use {used:.1f} of {cores:g} cores; none is free"


def host_is_full(facts: Facts) -> bool:
    """Whether no core of the host was left, whoever used them; False where nothing was read."""
    return _cores_all_busy(facts) is not None


def ranks_fill_host(facts: Facts) -> bool:
    """Whether ranks that compute on processors leave no core to whatever else runs."""
    load = facts.readings.last(HostLoad)
    cores = None if load is None else load.usable_cores
    return cores is not None and not facts.on_gpu and facts.summary.world_size >= cores


def _cores_all_busy(facts: Facts) -> float | None:
    """Give the cores of a host that has none to spare; None where it has, or nothing was read."""
    loads = facts.readings.all(HostLoad)
    busy = [load.host_cpu_cores for load in loads if load.host_cpu_cores is not None]
    if not busy:
        return None
    host = float(np.median(busy))
    cores = _host_cores(facts, host)
    return cores if cores and host >= _HOST_FULL * cores else None


def _host_cores(facts: Facts, busy: float) -> float | None:
    """Give the cores of the host; None where they are not known.

    Where nobody counted them, those this process may use are all there are if just as many are
    busy: on a larger host with a quota that would be a coincidence.
    """
    machine = facts.readings.last(Machine)
    if machine is not None and machine.cpu.logical_cores:
        return machine.cpu.logical_cores
    load = facts.readings.last(HostLoad)
    usable = None if load is None else load.usable_cores
    if not usable or not _HOST_FULL <= busy / usable <= 2 - _HOST_FULL:
        return None
    return usable


def held_clocks(facts: Facts) -> Finding | None:
    """Report a GPU whose clocks are throttled by heat or by its supply."""
    gpus = _own_gpus(facts, facts.readings.all(HostLoad))
    known = [gpu for gpu in gpus if gpu.throttle_reasons is not None]
    held = [gpu for gpu in known if set(gpu.throttle_reasons or ()) & set(_HELD_BACK)]
    if not known or len(held) < _MOST_OF_THE_TIME * len(known):
        return None
    reasons = sorted(
        {word for gpu in held for word in gpu.throttle_reasons or ()} & set(_HELD_BACK)
    )
    evidence = [f"{', '.join(reasons)} in {len(held)} of {count_text(len(known), 'reading')}"]
    temperatures = [gpu.temperature_c for gpu in held if gpu.temperature_c is not None]
    if temperatures:
        evidence.append(f"up to {max(temperatures):.0f} degrees Celsius")
    bound = _clock_bound(facts, known, evidence)
    return Finding(
        code="CLOCK001",
        severity="warning" if bound is None else severity_of(bound.share),
        summary="the device's clocks are throttled",
        evidence=tuple(evidence),
        bound=bound,
        remedy=remedy_for(facts, "CLOCK001"),
    )


def _clock_bound(facts: Facts, gpus: list[GpuLoad], evidence: list[str]) -> Bound | None:
    """Bound by the highest clock that this run itself saw; a device slowed throughout has none."""
    clocks = [gpu.sm_clock_hz for gpu in gpus if gpu.sm_clock_hz]
    if not clocks:
        return None
    mean, most = float(np.mean(clocks)), max(clocks)
    evidence.append(f"{mean / 1e6:.0f} MHz on average, {most / 1e6:.0f} MHz at best in this run")
    share = (1 - mean / most) * facts.steps_share
    return facts.of_busy("clocks", share) if share >= WORTH_A_WARNING else None


def _own_gpus(facts: Facts, loads: tuple[HostLoad, ...]) -> list[GpuLoad]:
    index = _gpu_index(facts)
    return [gpu for load in loads for gpu in load.gpus if gpu.index == index]


def _gpu_index(facts: Facts) -> int:
    setup = facts.setup
    number = "" if setup is None else (setup.device or "").partition(":")[2]
    if number.isdigit():
        return int(number)
    attempts = facts.record.attempts
    return attempts[-1].local_rank if attempts else 0
