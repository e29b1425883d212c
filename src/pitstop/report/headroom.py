"""How far a step is from its device, as text."""

import re
from pathlib import PurePath
from typing import Final

from pitstop.records.headroom import Headroom, KernelSource
from pitstop.records.units import rate_text, share_text, us_text

_FUNCTOR: Final = re.compile(r"(\w*Functor\w*|\w+_kernel_cuda|\w+_kernel_impl|\w+Ops)\b")


def headroom_text(headroom: Headroom) -> str:
    """Say what share of its device a step uses, and what it would take there."""
    if headroom.flops_share is None or headroom.arithmetic_us is None:
        return _without_rates(headroom)
    reached = rate_text(headroom.flops_per_s, "FLOP/s")
    peak = rate_text(headroom.peak_flops_per_s, "FLOP/s")
    said = (
        f"this step runs at {small_share(headroom.flops_share)} of the measured "
        f"{headroom.number_format} rate of {headroom.device} ({reached} of {peak}); "
        f"at that rate its arithmetic takes {us_text(headroom.arithmetic_us)} of "
        f"{us_text(headroom.step_us)}"
    )
    if headroom.traffic_us is not None:
        said += (
            f", the bytes it has to move {us_text(headroom.traffic_us)} (estimated, at "
            f"{rate_text(headroom.peak_bytes_per_s, 'B/s')})"
        )
    return said


def small_share(share: float) -> str:
    """A share that may be next to nothing, which is not the same as nothing."""
    return "under 0.1%" if 0 < share < 0.001 else share_text(share)


def _without_rates(headroom: Headroom) -> str:
    missing = "its arithmetic was not counted"
    if headroom.flops is not None:
        missing = "the device's rate was not measured"
    busy = "" if headroom.device_us is None else f"; the device works {us_text(headroom.device_us)}"
    return f"{missing}, so its headroom is not known{busy} in a step of {us_text(headroom.step_us)}"


def kernel_source(kernel: KernelSource) -> str:
    """Say what launched a kernel and where that stands in the script."""
    place = " at ".join(filter(None, (kernel.module, kernel_line(kernel))))
    by = "" if kernel.operation is None else f" by {kernel.operation}"
    return f"{by}, from {place}" if place else by


def kernel_line(kernel: KernelSource) -> str:
    """The line a kernel comes from, by its file's name alone."""
    return "" if kernel.file is None else f"{PurePath(kernel.file).name}:{kernel.line}"


def kernel_name(name: str) -> str:
    """Shorten a kernel's name to what it is and what it computes."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    head, _, rest = plain.partition("<")
    short = head.split("(")[0].rsplit("::", 1)[-1]
    functors = _FUNCTOR.findall(rest)
    return f"{short}: {functors[-1]}" if functors else short
