"""The page of a run on a GPU: device beside host, kernels, memory to the limit of the device."""

import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pitstop.cli.report import page_of
from pitstop.doctor.judge import judge_record
from pitstop.records.host.memory import DeviceMemory
from pitstop.records.run import Reading, Timeline, TimelineSpan
from pitstop.records.script import DeviceTrack, KernelTotal, Modules
from pitstop.records.store import read_run
from pitstop.records.units import bytes_text
from pitstop.report.page.blocks import Block, Chart, Section, Table
from pitstop.report.page.headroom import headroom_section
from pitstop.report.page.host import load_section, memory_section
from pitstop.report.page.parts import modules_section, sampled_icicle
from pitstop.report.page.run import RunView, view_of
from pitstop.report.page.step import step_section, timeline_section
from pitstop.report.page.verdict import headline_figures
from tests.browser.gpu_record import CLASSES, on_gpu
from tests.unit.doctor.records import (
    GIB,
    KERNELS,
    OWNERS,
    SETUP,
    gpu_load,
    load,
    memory,
    rank,
    run_of,
)

MOST_BYTES = 600_000


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return view_of(judge_record(read_run(on_gpu(tmp_path_factory.mktemp("gpu")))))


def charts(section: Section | None) -> dict[str, Chart]:
    """Charts of a section, by the key of their drawing."""
    assert section is not None
    return {key_of(block): block for block in section.blocks if isinstance(block, Chart)}


def key_of(chart: Chart) -> str:
    found = re.search(r'aria-labelledby="([\w-]+?)-t', chart.svg.text)
    assert found is not None, chart.svg.text[:200]
    return found[1]


def widths(chart: Chart) -> list[float]:
    """Widths of a bar's pieces, in percent."""
    return [
        float(width) for width in re.findall(r'<rect x="[\d.]+%" width="([\d.]+)%"', chart.svg.text)
    ]


def table(blocks: Iterable[Block], caption: str) -> Table:
    return next(b for b in blocks if isinstance(b, Table) and b.caption == caption)


def test_the_whole_page_is_small_and_has_every_section(tmp_path: Path) -> None:
    written = page_of([on_gpu(tmp_path / "run")], tmp_path / "page.html")
    assert written.size_bytes < MOST_BYTES
    assert {"Headroom on the device", "Host and device over a few steps", "Memory",
            "Parts of the model"} <= set(written.sections)  # fmt: skip


def test_the_step_stands_on_both_clocks(view: RunView) -> None:
    found = charts(step_section(view))
    device = found["step-bar-device"]
    assert sum(widths(device)) == pytest.approx(100, abs=0.5)
    # The device computes backward longest, while the host does little but wait.
    assert device.legend[0].name == "backward"
    assert found["step-bar"].legend[0].name == "wait"
    assert "on the host" in found["step-bar"].caption


def test_a_run_without_a_device_clock_has_one_bar() -> None:
    section = step_section(view_of(judge_record(run_of(rank({"forward": 4_000, "data": 900})))))
    found = charts(section)
    assert "step-bar-device" not in found
    assert "on the host" not in found["step-bar"].caption


def test_classes_of_kernels_are_one_bar_of_all_the_devices_time(view: RunView) -> None:
    section = headroom_section(view)
    bar = charts(section)["kernel-classes"]
    assert sum(widths(bar)) == pytest.approx(100, abs=0.5)
    assert [entry.name.split(",")[0] for entry in bar.legend] == list(CLASSES)
    assert len({entry.colour for entry in bar.legend}) == len(CLASSES)


def test_a_kernel_has_its_share_its_module_and_its_line(view: RunView) -> None:
    section = headroom_section(view)
    assert section is not None
    rows = table(section.blocks, "Kernels that take longest").rows
    name, took, share, times, operation, module, line = rows[2]
    assert (name.text, took.text, times.text) == ("vectorized_elementwise_kernel", "9.80 ms", "24")
    assert share.text == "10.1%", "9.8 of 96.9 ms"
    assert (operation.text, module.text, line.text) == (
        "aten::gelu", "transformer.h.*.mlp.gelu", "model.py:84",
    )  # fmt: skip
    of_class = {e.name.split(",")[0]: e.colour for e in charts(section)["kernel-classes"].legend}
    assert name.colour == of_class["element-wise"]


def test_the_bar_of_owners_ends_at_the_devices_limit(view: RunView) -> None:
    bar = charts(memory_section(view))["memory-owners"]
    assert bar.caption == "The peak of a step on cuda:0 by owner: 38.0 GiB of 141 GiB"
    assert sum(widths(bar)) == pytest.approx(100, abs=0.5)
    said = {entry.name.split(",")[0]: entry.name for entry in bar.legend}
    assert "100 GiB" in said["not reserved by this process"], "141 less 41"
    assert "3.00 GiB" in said["reserved beyond tensors"], "41 less 38"


@pytest.mark.parametrize(
    ("changed", "absent"),
    [
        ({"reserved_bytes": None}, "not reserved"),
        ({"total_bytes": None}, "not reserved"),
        ({"reserved_bytes": 70 * GIB}, "reserved beyond tensors"),
        ({"peak_bytes": None, "reserved_bytes": None, "total_bytes": None}, "activations"),
    ],
)
def test_what_was_not_counted_is_no_piece_of_the_bar(
    changed: dict[str, int | None], absent: str
) -> None:
    owners = replace(OWNERS, **changed)
    found = view_of(judge_record(run_of(rank({"forward": 4_000}, readings=[owners]))))
    bar = charts(memory_section(found))["memory-owners"]
    assert not [entry.name for entry in bar.legend if entry.name.startswith(absent)]
    assert sum(widths(bar)) == pytest.approx(100, abs=0.5)


def test_device_memory_over_time_is_the_drivers_where_nobody_asked_the_allocator(
    view: RunView,
) -> None:
    chart = charts(memory_section(view))["memory-gpu-0"]
    assert chart.note is not None
    assert chart.note.startswith("98.0 GiB of 141 GiB never used; as the driver counts it")
    assert "highest 43.0 GiB" in chart.svg.text


def test_the_allocators_own_numbers_come_before_the_drivers() -> None:
    device = DeviceMemory(
        device="cuda:0", total_bytes=80 * GIB, allocated_bytes=GIB, reserved_bytes=GIB,
        peak_allocated_bytes=GIB, peak_reserved_bytes=GIB, alloc_retries=0, ooms=0,
    )  # fmt: skip
    readings = [
        memory(1.0, GIB, GIB, devices=(device,)),
        load(gpu_load(memory_used_bytes=GIB, memory_total_bytes=80 * GIB), at_s=1.0),
    ]
    found = view_of(judge_record(run_of(rank({"forward": 4_000}, readings=readings))))
    assert "memory-gpu-0" not in charts(memory_section(found))
    assert "memory-0" in charts(memory_section(found))


def test_a_gpu_whose_driver_tells_no_memory_has_no_chart_of_it() -> None:
    readings = [load(gpu_load(), at_s=1.0), memory(1.0, GIB, GIB)]
    found = view_of(judge_record(run_of(rank({"forward": 4_000}, readings=readings))))
    assert "memory-gpu-0" not in charts(memory_section(found))


def test_the_peak_beside_the_verdict_is_the_training_processs_own(view: RunView) -> None:
    shown = headline_figures(view)
    assert shown is not None
    peak = next(one for one in shown.entries if one.name == "device memory, peak")
    assert peak.value == "38.0 GiB"
    assert peak.how == "held by tensors of 141 GiB; 41.0 GiB reserved; measured"


def test_the_device_has_a_row_of_its_own_in_the_timeline(view: RunView) -> None:
    section = timeline_section(view)
    assert section is not None
    drawn = next(iter(charts(section).values())).svg.text
    assert ">host<" in drawn
    assert ">device<" in drawn


def test_modules_stand_inside_one_another_forward_and_backward(view: RunView) -> None:
    drawn = charts(modules_section(view))["modules-icicle"].svg.text
    for text in ("transformer.h.11.mlp (MLP): 970 us", "transformer.h.11.mlp (MLP): 1.80 ms"):
        assert text in drawn


def test_a_kernel_of_compiled_code_is_not_said_to_be_launched_by_itself() -> None:
    name = "triton_poi_fused_gelu_7"
    own = KernelTotal(name=name, count=6, total_us=230.0, class_name="element-wise", operation=name)
    kernels = replace(KERNELS, classes={"element-wise": 400.0}, top=(own,))
    found = view_of(judge_record(run_of(rank({"forward": 900}, readings=[SETUP, kernels]))))
    section = headroom_section(found)
    assert section is not None
    shown = table(section.blocks, "Kernels that take longest")
    assert [cell.text for cell in shown.rows[0]] == [
        name, "230 us", "57.5%", "6", "", "", "",
    ]  # fmt: skip
    assert shown.note == "Colours are those of the classes."


def test_how_busy_a_gpu_was_is_asked_of_the_steps_alone() -> None:
    """Most readings fall into a long start-up, in which the GPU has nothing to do."""
    steps = rank({"forward": 10_000}, steps=100)
    assert steps.steps is not None
    begin_us = int(steps.steps.start_us[30])
    readings = tuple(
        Reading(attempt=0, kind="load", at_us=at_us,
                values=asdict(load(gpu_load(busy_share=share), at_s=at_us / 1e6)))
        for at_us, share in [*((-1_000 * n, 0.0) for n in range(1, 20)), (begin_us, 0.9)]
    )  # fmt: skip
    found = view_of(judge_record(run_of(replace(steps, readings=readings))))
    shown = headline_figures(found)
    assert shown is not None
    busy = next(one for one in shown.entries if one.name == "GPU busy, median")
    assert (busy.value, busy.how) == (
        "90.0%", "IQR 90.0% to 90.0%; measured 1 time in the steps",
    )  # fmt: skip
    section = load_section(found)
    assert section is not None
    numbers = table(section.blocks, "Load in numbers")
    assert numbers.rows[0][1].text == "90.0%"
    assert numbers.note == (
        "measured, 1 reading while the steps after warm-up ran; not measured: GPU memory in use, "
        "by anybody, GPU power, read by this job, written by this job"
    )
    assert "not measured" not in [cell.text for row in numbers.rows for cell in row]


def test_a_timeline_without_places_on_the_device_says_what_is_known_of_it() -> None:
    on_device = {"forward": 8_000.0}
    timed = rank({"forward": 900}, device=on_device)
    span = TimelineSpan(path=("forward",), start_us=0, end_us=900, device_start_us=None,
                        device_end_us=None)  # fmt: skip
    lies = Timeline(attempt=0, step=5, spans=(span,), left_out=0)
    found = view_of(judge_record(run_of(replace(timed, timelines=(lies,)))))
    section = timeline_section(found)
    assert section is not None
    assert section.lead is not None
    assert section.lead.endswith("how long parts took is measured, above; where they lay is not.")


def test_numbered_modules_stand_in_order_where_the_longest_of_them_does(view: RunView) -> None:
    names = ("stage8", "head", "stage12", "stage1", "norm", "h.10", "h.9")
    one = view.readings("modules", Modules)[-1].modules[0]
    found = tuple(replace(one, name=name, parent=None) for name in names)
    [chart] = sampled_icicle(Modules(step=1, modules=found))
    drawn = re.findall(r"<title>([\w.]+) \(", chart.svg.text)
    assert drawn[: len(names)] == ["stage1", "stage8", "stage12", "head", "norm", "h.9", "h.10"]


def test_what_modules_hold_for_backward_is_a_row_of_the_icicle_on_its_own_scale(
    view: RunView,
) -> None:
    section = modules_section(view)
    chart = charts(section)["modules-icicle"]
    assert ">held for backward, 36.0 GiB<" in chart.svg.text
    found = re.findall(
        r'<rect x="([\d.]+)%" width="([\d.]+)%"[^>]*><title>([^<]*)</title>', chart.svg.text
    )
    width = {said: float(share) for _, share, said in found}
    assert width["transformer (ModuleDict): 24.0 GiB"] == pytest.approx(100 * 24 / 36, abs=0.02)
    assert width["transformer.h.3.mlp (MLP): 1.00 GiB"] == pytest.approx(100 / 36, abs=0.02)
    assert chart.note is not None
    assert "on a scale of its own" in chart.note
    assert section is not None
    modules = table(section.blocks, "Modules in step 32")
    held = {row[0].text: row[-1].text for row in modules.rows}
    assert modules.columns[-1].name == "held for backward"
    assert held["transformer.h.3.attn"] == "640 MiB"
    assert held["(model)"] == bytes_text(0), "not a module that holds anything of its own"


def test_a_record_without_memory_of_modules_has_times_alone(view: RunView) -> None:
    modules = view.readings("modules", Modules)[-1]
    [chart] = sampled_icicle(modules)
    assert "held" not in chart.svg.text
    assert chart.note == "Both passes are on one scale."


def test_a_profiled_step_has_kernels_and_transfers_below_the_host(view: RunView) -> None:
    found = charts(timeline_section(view))["track-11"]
    drawn = found.svg.text
    rows = re.findall(r'class="label">([\w ]+)</text>', drawn)
    assert rows == ["host", "device", "transfers"]
    assert "matrix products, 8 kernels: 1.38 ms, from 2.60 ms" in drawn
    named = {entry.name for entry in found.legend}
    assert {"device: matrix products", "device: transfers", "host: forward"} <= named
    ends = [float(x) + float(w) for x, w in re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', drawn)]
    assert max(ends) <= 100.01


def test_a_track_alone_is_a_timeline() -> None:
    track = DeviceTrack(
        step=4, wall_us=100, host=(), classes=("softmax",), pieces=((0.0, 50.0, 0, 2),)
    )
    kernels = replace(KERNELS, track=track)
    found = view_of(judge_record(run_of(rank({"forward": 900}, readings=[SETUP, kernels]))))
    assert list(charts(timeline_section(found))) == ["track-4"]


def test_of_very_many_kernels_the_page_has_the_longest() -> None:
    pieces = tuple((10.0 * n, 10.0 * n + 1 + n / 1_000, 0, 1) for n in range(2_000))
    track = DeviceTrack(
        step=4, wall_us=20_000, host=(), classes=("softmax",), pieces=pieces, left_out=5
    )
    kernels = replace(KERNELS, track=track)
    found = view_of(judge_record(run_of(rank({"forward": 900}, readings=[SETUP, kernels]))))
    chart = charts(timeline_section(found))["track-4"]
    assert chart.svg.text.count("<title>softmax") == 600
    assert chart.note is not None
    assert chart.note.endswith("1,405 shorter pieces left out.")
