"""A language model trained on a GPU under the doctor, as its record would be: fixed numbers.

The host runs ahead of the device, which works off its queue: parts are short on the host's clock
and long on the device's. Device memory over time is the driver's, for whoever looks from outside
cannot ask torch's allocator; owners are the training process's own.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from pitstop.records.script import (
    DeviceTrack,
    Kept,
    KernelTotal,
    ModuleKind,
    ModuleMemory,
    Modules,
    ModuleTime,
    OperationSource,
    Owners,
    Rates,
)
from pitstop_probe import Clock, RecordWriter
from tests.browser.records import fix_head, wave
from tests.fakes import FakeClock, FakeDevice, FakeMark
from tests.unit.doctor.records import GIB, KERNELS, SETUP, WORK, gpu_load, load, memory

STEPS: Final = 200
LAYERS: Final = 12
TOTAL_BYTES: Final = 141 * GIB
PEAK_BYTES: Final = 38 * GIB

# Host and device, in microseconds, of the parts of a step.
_PARTS: Final = (
    ("data", 300, 0),
    ("copy", 120, 90),
    ("forward", 6_400, 27_800),
    ("loss", 350, 3_900),
    ("backward", 5_200, 58_600),
    ("clip", 900, 1_100),
    ("optimizer", 1_800, 5_200),
    ("zero_grad", 260, 240),
)
CLASSES: Final = {
    "matrix products": 49_300.0,
    "element-wise": 19_800.0,
    "attention": 12_700.0,
    "normalisation": 5_600.0,
    "optimizer": 5_200.0,
    "reductions": 2_400.0,
    "copies and layout": 1_900.0,
}
_TOP: Final = (
    ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", 96, 31_200.0, "matrix products", "aten::mm"),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", 48, 18_100.0, "matrix products",
     "aten::addmm"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::"
     "TensorIteratorBase&, at::native::GeluType)::{lambda()#1}>", 24, 9_800.0, "element-wise",
     "aten::gelu"),
    ("pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>",
     12, 8_300.0, "attention", "aten::_scaled_dot_product_flash_attention_backward"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::FusedAdamMath"
     "Functor<float, 4>>", 18, 5_200.0, "optimizer", "aten::_fused_adamw_"),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", 12, 4_400.0,
     "attention", "aten::_scaled_dot_product_flash_attention"),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>",
     25, 2_300.0, "normalisation", "aten::native_layer_norm"),
    ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Tensor"
     "IteratorBase&)::{lambda()#3}>", 149, 1_900.0, "copies and layout", "aten::copy_"),
)  # fmt: skip
_SOURCES: Final = (
    ("aten::mm", "transformer.h.*.mlp.c_fc", 83),
    ("aten::addmm", "transformer.h.*.attn.c_attn", 56),
    ("aten::gelu", "transformer.h.*.mlp.gelu", 84),
    ("aten::_scaled_dot_product_flash_attention", "transformer.h.*.attn", 64),
    ("aten::native_layer_norm", "transformer.h.*.ln_1", 27),
    ("aten::_to_copy", None, 301),
)  # fmt: skip


class QueuedDevice(FakeDevice):
    """A device that works off what it was given, later than the host gave it."""

    def __init__(self, time: FakeClock) -> None:
        super().__init__(time)
        self._clock = time
        self._free_us = 0

    def work(self, took_us: int) -> None:
        """Queue work behind what is there."""
        self._free_us = max(self._free_us, self._clock.now_us()) + took_us

    def wait(self) -> None:
        """Let the host wait until the queue is empty."""
        self._clock.advance(max(0, self._free_us - self._clock.now_us()))

    def mark(self) -> FakeMark:
        """Mark the moment at which the device will have come so far."""
        mark = super().mark()
        mark.at_us = max(mark.at_us, self._free_us)
        return mark


def on_gpu(folder: Path) -> Path:
    """Write the record of a language model that keeps its GPU busy."""
    time = FakeClock(1_000_000)
    device = QueuedDevice(time)
    writer = RecordWriter(
        str(folder / "rank-0.jsonl"), about={"name": "script"}, now_us=time.now_us
    )
    clock = Clock(writer, now_us=time.now_us, device=device)
    with clock.outside_step("start-up"):
        time.advance(9_800_000)
    for number in range(STEPS):
        _step(clock, time, device, number)
        if number % 10 == 9:
            writer.scalars(number, {"loss": 10.9 - 0.02 * number + wave(number, 30, 40) / 1e3})
            _host_readings(writer, time, number)
    for kind, reading in _readings():
        writer.reading(kind, asdict(reading))
    clock.close()
    writer.close()
    fix_head(folder / "rank-0.jsonl", rank=0, world=1)
    return folder


def _step(clock: Clock, time: FakeClock, device: QueuedDevice, number: int) -> None:
    clock.begin_step()
    for name, host_us, device_us in _PARTS:
        with clock.span(name):
            time.advance(host_us + wave(number, 23, host_us // 20))
            if device_us:
                device.work(device_us + wave(number, 17, device_us // 50))
    with clock.span("wait"):
        device.wait()
    time.advance(200)
    clock.count(samples=16)


def _host_readings(writer: RecordWriter, time: FakeClock, number: int) -> None:
    at_s = time.now_us() / 1e6
    writer.reading("memory", asdict(memory(at_s, 5 * GIB, 4 * GIB)))
    used = (3 if number < 10 else 43) * GIB
    gpu = gpu_load(
        busy_share=(97 + wave(number, 50, 2)) / 100,
        power_w=540.0 + wave(number, 40, 30),
        memory_used_bytes=used,
        memory_total_bytes=TOTAL_BYTES,
    )
    writer.reading("load", asdict(load(gpu, at_s=at_s)))


def _readings() -> Iterator[tuple[str, Any]]:
    yield "setup", replace(
        SETUP, models=("GPT",), optimizers=("AdamW(fused)",), parameters=124_373_760,
        samples_per_step=16.0,
    )  # fmt: skip
    top = tuple(
        KernelTotal(name=name, count=count, total_us=us, class_name=kind, operation=operation)
        for name, count, us, kind, operation in _TOP
    )
    yield "kernels", replace(
        KERNELS, step=30, wall_us=98_400.0, launches=1_460, busy_us=96_700.0,
        matmul_us=62_000.0, tensor_core_us=62_000.0, other_us=33_000.0, top=top, classes=CLASSES,
        track=_track(),
    )  # fmt: skip
    sources = tuple(
        OperationSource(operation=operation, file="/home/me/nanogpt/model.py", line=line,
                        module=module, calls=LAYERS, share=0.9)
        for operation, module, line in _SOURCES
    )  # fmt: skip
    yield "work", replace(
        WORK, step=31, flops=14_300_000_000_000, flops_by_dtype={"bfloat16": 14_300_000_000_000},
        bytes_moved=190 * 10**9, pointwise_bytes=120 * 10**9, pointwise_bytes_fused=50 * 10**9,
        sources=sources, kept=_kept(),
    )  # fmt: skip
    yield "rates", Rates(
        device="cuda:0", flops_per_s={"fp32": 5.1e13, "tf32": 3.6e14, "bf16": 7.3e14},
        bytes_per_s=3.9e12,
    )  # fmt: skip
    yield "owners", Owners(
        device="cuda:0", parameters_bytes=497_495_040, gradients_bytes=497_495_040,
        optimizer_bytes=994_990_080, peak_bytes=PEAK_BYTES, reserved_bytes=41 * GIB,
        total_bytes=TOTAL_BYTES, alloc_retries=0, inactive_split_bytes=GIB // 4,
    )  # fmt: skip
    yield "modules", _modules()


def _modules() -> Modules:
    """Twelve blocks inside a list that is never called itself, as a record has them."""
    found = [
        ModuleTime(name="(model)", kind="GPT", forward_us=31_000, backward_us=57_000),
        ModuleTime(name="transformer", kind="ModuleDict", forward_us=24_600, backward_us=45_300,
                   parent=0),
        ModuleTime(name="lm_head", kind="Linear", forward_us=5_900, backward_us=11_400, parent=0),
        ModuleTime(name="transformer.h", kind="ModuleList", forward_us=24_000,
                   backward_us=44_400, parent=1),
    ]  # fmt: skip
    for layer in range(LAYERS):
        block = len(found)
        name = f"transformer.h.{layer}"
        found.append(ModuleTime(name=name, kind="Block", forward_us=2_000, backward_us=3_700,
                                parent=3))  # fmt: skip
        for part, kind, forward_us, backward_us in (
            ("ln_1", "LayerNorm", 90, 170),
            ("attn", "CausalSelfAttention", 800, 1_500),
            ("ln_2", "LayerNorm", 90, 170),
            ("mlp", "MLP", 970, 1_800),
        ):
            found.append(ModuleTime(name=f"{name}.{part}", kind=kind, forward_us=forward_us,
                                    backward_us=backward_us, parent=block))  # fmt: skip
    return Modules(
        step=32, modules=tuple(found), clock="device", forward_us=31_700, backward_us=58_600,
        kinds=(ModuleKind(kind="Block", places=12, forward_us=24_000, backward_us=44_400),
               ModuleKind(kind="MLP", places=12, forward_us=11_640, backward_us=21_600)),
    )  # fmt: skip


def _kept() -> Kept:
    """What the same blocks made and backward found held, a fifth of it by the model's own lines."""
    found = [
        ModuleMemory(name="lm_head", kind="Linear", num_bytes=6 * GIB),
        ModuleMemory(name="transformer", kind="ModuleDict", num_bytes=LAYERS * 2 * GIB),
        ModuleMemory(name="transformer.h", kind="ModuleList", num_bytes=LAYERS * 2 * GIB, parent=1),
    ]
    for layer in range(LAYERS):
        block = len(found)
        name = f"transformer.h.{layer}"
        found.append(ModuleMemory(name=name, kind="Block", num_bytes=2 * GIB, parent=2))
        for part, kind, sixteenths in (
            ("ln_1", "LayerNorm", 2),
            ("attn", "CausalSelfAttention", 10),
            ("ln_2", "LayerNorm", 2),
            ("mlp", "MLP", 16),
        ):
            found.append(ModuleMemory(name=f"{name}.{part}", kind=kind,
                                      num_bytes=sixteenths * GIB // 16, parent=block))  # fmt: skip
    return Kept(num_bytes=36 * GIB, modules=tuple(found))


def _track() -> DeviceTrack:
    """Kernels of a profiled step: products, element-wise work and attention in turn."""
    classes = ("attention", "element-wise", "matrix products", "optimizer", "transfers")
    pieces = [(150.0, 240.0, 4, 1)]
    at_us = 2_600.0
    for _ in range(3 * LAYERS):
        for place, took_us, count in ((2, 1_380.0, 8), (1, 550.0, 3), (0, 353.0, 1)):
            pieces.append((at_us, at_us + took_us, place, count))
            at_us += took_us + 40.0
    pieces.append((at_us, at_us + 5_200.0, 3, 18))
    host, begin = [], 0.0
    for name, host_us, _ in _PARTS:
        host.append((name, begin, begin + 2.0 * host_us))
        begin += 2.0 * host_us
    host.append(("wait", begin, 98_000.0))
    return DeviceTrack(step=11, wall_us=98_400, host=tuple(host), classes=classes,
                       pieces=tuple(pieces))  # fmt: skip
