"""Modules and the device's time as a reader sees them."""

from dataclasses import replace

from rich.console import Group

from pitstop.records.headroom import Headroom, KernelClass, KernelSource
from pitstop.records.module_table import KindRow, ModuleRow, ModuleTable
from pitstop.records.verdict import Verdict
from pitstop.report.headroom import headroom_text, kernel_name
from pitstop.report.terminal import start_up_text
from pitstop.report.terminal_tables import headroom_lines, module_lines
from tests.unit.report.test_terminal import rendered

KERNEL = KernelSource(
    name="void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>",
    class_name="element-wise",
    us=2_000.0,
    count=40,
    operation="aten::mul",
    module="stage*.blocks.*",
    file="/home/me/net.py",
    line=88,
)
HEADROOM = Headroom(
    step_us=1_840_000.0,
    device="NVIDIA H200",
    number_format="bf16",
    flops=264 * 10**11,
    peak_flops_per_s=8e14,
    bytes_moved=8 * 10**11,
    least_bytes=4 * 10**11,
    peak_bytes_per_s=4e12,
    device_us=1_800_000.0,
    classes=tuple(KernelClass(name=f"class {n}", us=100.0, share=0.1) for n in range(9)),
    kernels=(KERNEL,),
)


def test_headroom_says_what_the_arithmetic_would_take() -> None:
    assert headroom_text(HEADROOM) == (
        "this step runs at 1.8% of the measured bf16 rate of NVIDIA H200 (14.3 TFLOP/s of 800 "
        "TFLOP/s); at that rate its arithmetic takes 33.0 ms of 1.84 s, the bytes it has to move "
        "100 ms (estimated, at 4.00 TB/s)"
    )


def test_a_device_without_rates_is_not_given_any() -> None:
    unknown = replace(HEADROOM, peak_flops_per_s=None)
    assert "rate was not measured" in headroom_text(unknown)
    assert "arithmetic was not counted" in headroom_text(replace(HEADROOM, flops=None))


def test_six_classes_are_shown_and_where_kernels_come_from() -> None:
    lines = rendered(Group(*headroom_lines(HEADROOM)))
    assert sum("class " in line for line in lines) == 6
    assert lines[-1] == (
        "  2.00 ms vectorized_elementwise_kernel: MulFunctor by aten::mul, from stage*.blocks.* "
        "at net.py:88"
    )
    assert list(headroom_lines(None)) == []


def test_a_kernels_name_is_cut_to_what_it_is() -> None:
    assert kernel_name("ampere_sgemm_128x64_tn") == "ampere_sgemm_128x64_tn"
    layer_norm = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)"
    assert kernel_name(layer_norm) == "vectorized_layer_norm_kernel"


def test_modules_are_indented_and_their_coverage_said() -> None:
    stage = ModuleRow(
        name="stage1", kind="Stage", depth=0, forward_us=9_000, backward_us=20_000,
        recompute_us=4_000, share=0.9,
    )  # fmt: skip
    frozen = replace(stage, name="stage1.flow", depth=1, backward_us=None, recompute_us=0)
    table = ModuleTable(
        rows=(stage, frozen), basis="sampled up to step 6, device's clock", covers_forward=0.93,
        covers_backward=None, kinds=(KindRow(kind="Align", places=7, share=0.2),),
    )  # fmt: skip
    lines = rendered(Group(*module_lines(table)))
    assert lines[1].startswith("stage1 (Stage)")
    assert lines[2].startswith("  stage1.flow (Stage)")
    assert "not split" in lines[2]
    assert lines[3].endswith("clock; covers 93.0% of forward; backward is not split")
    assert lines[4] == "by class, wherever they are: Align 20.0% in 7 places"
    assert list(module_lines(None)) == []


def test_start_up_is_said_part_by_part() -> None:
    verdict = Verdict(
        outcome="healthy",
        message="",
        findings=(),
        start_up_s=262.0,
        start_up_parts_s={"imports": 6.0, "data": 0.0, "compiling": 242.0, "the rest": 14.0},
    )
    assert start_up_text(verdict) == (
        "start-up 4 min 22 s (not included above): imports 6.00 s, compiling 4 min 02 s, the rest "
        "14.0 s"
    )
