"""What the NVIDIA driver says of each GPU: load, clocks, power, temperature, who else is on it.

The bindings come with the extra ``train`` and the library with the driver; neither being there is a
normal state, reported in a note.
"""

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pitstop.measure.host.process_tree import PROC
from pitstop.records.host.memory import GpuLoad

_Value = TypeVar("_Value")

_THROTTLE_BITS: Final = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal (software)",
    0x040: "thermal (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
}


def open_nvml() -> tuple[Any | None, str | None]:
    """Load and start NVML; the second value says why there is none."""
    try:
        import pynvml
    except ImportError:
        return None, "GPU load: not measured, needs nvidia-ml-py; pip install nvidia-ml-py"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"GPU load: not measured, the NVIDIA driver does not answer ({error})"
    return pynvml, None


class Nvml:
    """The visible GPUs, through NVML or anything with its functions.

    Args:
        api: The module ``pynvml``, started.
        visible: What CUDA_VISIBLE_DEVICES says; None when it is not set.
        proc: Where the process file system is mounted.
    """

    def __init__(self, api: Any, *, visible: str | None, proc: Path = PROC) -> None:
        self._api = api
        self._proc = proc
        self._handles = self._visible_handles(visible)

    @classmethod
    def open(cls) -> tuple["Nvml | None", str | None]:
        """Start NVML for the GPUs this process can see; the second value says why not."""
        api, reason = open_nvml()
        if api is None:
            return None, reason
        try:
            return cls(api, visible=os.environ.get("CUDA_VISIBLE_DEVICES")), None
        except api.NVMLError as error:
            return None, f"GPU load: not measured, the NVIDIA driver refuses ({error})"

    def driver(self) -> str | None:
        """Version of the driver."""
        return self._ask(lambda: _text(self._api.nvmlSystemGetDriverVersion()))

    def loads(self, own_pids: Collection[int]) -> tuple[GpuLoad, ...]:
        """Read every visible GPU.

        Args:
            own_pids: Processes of the job itself, which are not "others".
        """
        return tuple(
            self._load(index, handle, own_pids) for index, handle in enumerate(self._handles)
        )

    def _load(self, index: int, handle: Any, own_pids: Collection[int]) -> GpuLoad:
        api = self._api
        busy = self._ask(lambda: api.nvmlDeviceGetUtilizationRates(handle))
        memory = self._ask(lambda: api.nvmlDeviceGetMemoryInfo(handle))
        pids = self._ask(
            lambda: [int(entry.pid) for entry in api.nvmlDeviceGetComputeRunningProcesses(handle)]
        )
        return GpuLoad(
            index=index,
            busy_share=None if busy is None else busy.gpu / 100,
            memory_busy_share=None if busy is None else busy.memory / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            sm_clock_hz=self._clock_hz(handle, "NVML_CLOCK_SM"),
            memory_clock_hz=self._clock_hz(handle, "NVML_CLOCK_MEM"),
            power_w=self._ask(lambda: api.nvmlDeviceGetPowerUsage(handle) / 1000),
            power_limit_w=self._ask(lambda: api.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            temperature_c=self._ask(
                lambda: float(api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU))
            ),
            throttle_reasons=self._throttle_reasons(handle),
            processes=None if pids is None else len(pids),
            other_pids=None if pids is None else self._others(pids, own_pids),
        )

    def _clock_hz(self, handle: Any, kind: str) -> float | None:
        api = self._api
        return self._ask(lambda: api.nvmlDeviceGetClockInfo(handle, getattr(api, kind)) * 1e6)

    def _throttle_reasons(self, handle: Any) -> tuple[str, ...] | None:
        api = self._api
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            read = getattr(api, name, None)
            bits = None if read is None else self._ask(lambda read=read: int(read(handle)))
            if bits is not None:
                return tuple(word for bit, word in _THROTTLE_BITS.items() if bits & bit)
        return None

    def _others(self, pids: Sequence[int], own_pids: Collection[int]) -> tuple[int, ...] | None:
        """Find the processes of other jobs; None when the driver counts in another namespace.

        Inside a container the driver may report the host's numbers: a number this system does not
        know cannot be compared with ours.
        """
        others = tuple(sorted(set(pids) - set(own_pids)))
        if self._proc.is_dir() and not all((self._proc / str(pid)).exists() for pid in others):
            return None
        return others

    def _ask(self, read: Callable[[], _Value]) -> _Value | None:
        """Read one value; what a board or a driver does not support is None."""
        try:
            return read()
        except self._api.NVMLError:
            return None

    def _visible_handles(self, visible: str | None) -> list[Any]:
        api = self._api
        every = [api.nvmlDeviceGetHandleByIndex(i) for i in range(api.nvmlDeviceGetCount())]
        if visible is None:
            return every
        names = [_text(api.nvmlDeviceGetUUID(handle)) for handle in every]
        return [every[position] for position in visible_positions(visible, names)]


def visible_positions(visible: str, uuids: Sequence[str]) -> list[int]:
    """Resolve CUDA_VISIBLE_DEVICES as CUDA does: in order, up to the first entry that is wrong.

    Args:
        visible: Comma-separated numbers or beginnings of UUIDs.
        uuids: UUIDs of all GPUs of the host, in the driver's order.
    """
    found: list[int] = []
    for word in (part.strip() for part in visible.split(",")):
        matches = [
            position
            for position, uuid in enumerate(uuids)
            if (word.isdigit() and int(word) == position) or (word and uuid.startswith(word))
        ]
        if len(matches) != 1 or matches[0] in found:
            return found
        found += matches
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
