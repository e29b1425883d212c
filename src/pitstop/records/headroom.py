"""How far a step is from what its device can do, and what the device's time goes into."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelClass:
    """Kernels of one class in a step."""

    name: str
    us: float
    share: float
    """Of the device's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """A kernel that takes much of a step, and where it comes from as far as that is known."""

    name: str
    class_name: str
    us: float
    count: int
    operation: str | None
    module: str | None
    file: str | None
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """A step against its device. What is None was not measured."""

    step_us: float
    device: str
    number_format: str
    """Of the rate that arithmetic is held against: the fastest one measured here."""
    flops: int | None = None
    peak_flops_per_s: float | None = None
    least_bytes: int | None = None
    """That the step has to move, its element-wise work fused; an estimate."""
    bytes_moved: int | None = None
    """That its operations read and write as they are."""
    peak_bytes_per_s: float | None = None
    device_us: float | None = None
    """Kernels and copies of a step, one after the other."""
    classes: tuple[KernelClass, ...] = ()
    """Largest first."""
    kernels: tuple[KernelSource, ...] = ()
    """Longest first."""

    @property
    def flops_per_s(self) -> float | None:
        """Arithmetic that the step reaches."""
        return _over(self.flops, self.step_us / 1e6)

    @property
    def flops_share(self) -> float | None:
        """Of the device's measured rate."""
        return _over(self.flops_per_s, self.peak_flops_per_s)

    @property
    def bytes_per_s(self) -> float | None:
        """Traffic that the step reaches, caches aside."""
        return _over(self.bytes_moved, self.step_us / 1e6)

    @property
    def bytes_share(self) -> float | None:
        """Of the device's measured rate; above 1 where caches serve most of it."""
        return _over(self.bytes_per_s, self.peak_bytes_per_s)

    @property
    def arithmetic_us(self) -> float | None:
        """What the arithmetic takes at the measured rate."""
        seconds = _over(self.flops, self.peak_flops_per_s)
        return None if seconds is None else seconds * 1e6

    @property
    def traffic_us(self) -> float | None:
        """What the bytes that have to move take at the measured rate."""
        seconds = _over(self.least_bytes, self.peak_bytes_per_s)
        return None if seconds is None else seconds * 1e6

    @property
    def least_us(self) -> float | None:
        """What the step would take at these rates: the longer of the two, both at a time."""
        known = [us for us in (self.arithmetic_us, self.traffic_us) if us is not None]
        return max(known, default=None)


def _over(value: float | None, unit: float | None) -> float | None:
    return None if value is None or not unit else value / unit
