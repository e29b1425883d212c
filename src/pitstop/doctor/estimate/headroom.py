"""The step against its device: what it reaches, what it could take, what the time goes into."""

from collections.abc import Mapping
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.records.headroom import Headroom, KernelClass, KernelSource
from pitstop.records.host.machine import Machine
from pitstop.records.script import Kernels, KernelTotal, OperationSource, Rates, Work

# What the profiler calls an operation that was counted under the name of its caller.
_COUNTED_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "aten::copy_": ("aten::_to_copy", "aten::clone", "aten::contiguous"),
    "aten::cudnn_convolution": ("aten::convolution",),
    "aten::_conv_depthwise2d": ("aten::convolution",),
    "aten::cudnn_batch_norm": ("aten::native_batch_norm",),
    "aten::fill_": ("aten::zeros_like", "aten::zero_"),
}


def headroom_of(facts: Facts) -> Headroom | None:
    """Set a step against what its device was measured to do; None where nothing was."""
    work, kernels = facts.readings.last(Work), facts.readings.last(Kernels)
    if work is not None and not work.flops:
        work = None  # a replayed graph, say: its operations were not there to be counted
    rates = _rates(facts)
    has_classes = kernels is not None and bool(kernels.classes)
    if not facts.step_us or not (has_classes or (work is not None and rates)):
        return None
    fastest = max(rates, key=rates.__getitem__, default="bf16")
    return Headroom(
        step_us=facts.step_us,
        device=_device(facts),
        number_format=fastest,
        flops=None if work is None else work.flops,
        peak_flops_per_s=rates.get(fastest),
        bytes_moved=None if work is None else work.bytes_moved,
        least_bytes=None if work is None else work.least_bytes,
        peak_bytes_per_s=_bytes_per_s(facts),
        device_us=sum(kernels.classes.values()) if kernels is not None and has_classes else None,
        classes=() if kernels is None else _classes(kernels),
        kernels=() if kernels is None else _kernels(kernels, work),
    )


def _device(facts: Facts) -> str:
    setup = facts.setup
    named = None if setup is None else setup.device_name or setup.device
    return named or ("GPU" if facts.on_gpu else "processor")


def _rates(facts: Facts) -> Mapping[str, float]:
    """FLOP/s of large products by number format, from the run itself or from its machine."""
    measured, machine = facts.readings.last(Rates), facts.readings.last(Machine)
    if measured is not None:
        return measured.flops_per_s
    if machine is None:
        return {}
    setup = facts.setup
    device = (setup.device if setup is not None else None) or ("cuda:0" if facts.on_gpu else "cpu")
    return {each.dtype: each.rate.value for each in machine.matrix_rates if each.device == device}


def _bytes_per_s(facts: Facts) -> float | None:
    """Bytes a second inside the device's memory; on a processor caches serve too many to say."""
    if not facts.on_gpu:
        return None
    measured, machine = facts.readings.last(Rates), facts.readings.last(Machine)
    if measured is not None:
        return measured.bytes_per_s
    copies = () if machine is None else machine.copy_rates
    return next((each.rate.value for each in copies if each.route == "device"), None)


def _classes(kernels: Kernels) -> tuple[KernelClass, ...]:
    whole = sum(kernels.classes.values()) or 1.0
    ordered = sorted(kernels.classes.items(), key=lambda item: -item[1])
    return tuple(KernelClass(name=name, us=us, share=us / whole) for name, us in ordered)


def _kernels(kernels: Kernels, work: Work | None) -> tuple[KernelSource, ...]:
    sources = {} if work is None else {each.operation: each for each in work.sources}
    return tuple(_kernel(each, _source(each.operation, sources)) for each in kernels.top)


def _source(
    operation: str | None, sources: Mapping[str, OperationSource]
) -> OperationSource | None:
    if operation is None:
        return None
    names = (operation, *_COUNTED_AS.get(operation, ()))
    return next((sources[name] for name in names if name in sources), None)


def _kernel(kernel: KernelTotal, source: OperationSource | None) -> KernelSource:
    return KernelSource(
        name=kernel.name,
        class_name=kernel.class_name or "other",
        us=kernel.total_us,
        count=kernel.count,
        operation=kernel.operation,
        module=None if source is None else source.module,
        file=None if source is None else source.file,
        line=None if source is None else source.line,
    )
