"""Sections one by one, over records made by hand: what they say, and when they say nothing."""

import json
import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from pitstop.cli.report import page_of
from pitstop.doctor.compare import compare
from pitstop.doctor.judge import judge_record, judge_records
from pitstop.logs.read import read_logs
from pitstop.records.comparison import PartChange
from pitstop.records.engine import EngineSetup
from pitstop.records.host.machine import Cpu, Machine, MatrixRate, Ram, Software
from pitstop.records.loader import LoaderReading
from pitstop.records.quantity import measured
from pitstop.records.run import RankRecord, RunRecord
from pitstop.records.script import Ended
from pitstop.records.store import read_run
from pitstop.report.explain import explain
from pitstop.report.page.about import log_section, machine_section, origin_of, settings_section
from pitstop.report.page.blocks import (
    Block,
    Chart,
    Figures,
    Findings,
    Message,
    Node,
    Section,
    Table,
    Tree,
    WhatIf,
    named_columns,
    text_cell,
)
from pitstop.report.page.compare import (
    Pair,
    RunsView,
    differences_section,
    runs_view,
    series_section,
    side_by_side_section,
)
from pitstop.report.page.host import load_section, memory_section
from pitstop.report.page.loader import loader_section
from pitstop.report.page.over_time import over_time_section
from pitstop.report.page.parts import modules_section
from pitstop.report.page.ranks.section import ranks_section
from pitstop.report.page.run import RunView, quartiles, view_of
from pitstop.report.page.step import step_section, timeline_section
from pitstop.report.page.verdict import findings_section, headline_figures
from pitstop.report.page.whole_run import run_section
from pitstop_probe import Clock, RecordWriter
from tests.browser.records import write_run
from tests.fakes import FakeClock
from tests.unit.doctor.records import GIB, OWNERS, WORK, load, memory, noisy, rank, raw, run_of

LOGS = Path(__file__).parents[3] / "data" / "logs"
PARTS = {"data": 5_000, "forward": 10_000, "backward": 20_000}


def viewed(record: RunRecord) -> RunView:
    return view_of(judge_record(record))


def view(*readings: object, **rest: Any) -> RunView:
    return viewed(run_of(rank(PARTS, readings=readings, **rest)))


def log_view(name: str, **given: Any) -> RunView:
    return viewed(read_logs([LOGS / name], **given)[0])


def told(section: Section | None) -> str:
    """All text of a section, drawings included."""
    assert section is not None
    return " ".join([section.title, section.lead or "", *map(block_text, section.blocks)])


def block_text(block: Block) -> str:
    if isinstance(block, Table):
        cells = [cell.text for row in block.rows for cell in row]
        return " ".join([block.caption, *cells, block.note or ""])
    if isinstance(block, Chart):
        return f"{block.caption} {block.svg.text} {block.note or ''}"
    if isinstance(block, Message):
        return block.text
    return str(block)


def figures(found: Figures) -> dict[str, str]:
    return {figure.name: f"{figure.value}; {figure.how}" for figure in found.entries}


def test_numbers_beside_the_verdict_have_spread_and_basis() -> None:
    found = figures(headline_figures(view()))
    assert found["a step, median"] == (
        "35.0 ms; IQR 35.0 ms to 35.0 ms; measured, 90 steps after warm-up"
    )
    assert found["throughput"].startswith("114 samples/s; measured on the wall clock")
    assert found["waiting for data"].startswith("14.3%; ± 0.0% standard error; measured")


def test_throughput_counts_all_ranks() -> None:
    both = [rank(PARTS, number=number, world=2) for number in range(2)]
    found = figures(headline_figures(viewed(run_of(*both))))
    assert found["throughput"].startswith("229 samples/s; all 2 ranks")


def test_a_run_without_a_data_part_says_so() -> None:
    only = viewed(run_of(rank({"forward": 10_000})))
    assert figures(headline_figures(only))["waiting for data"].startswith("not measured")
    assert "Waiting for data" not in told(over_time_section(only))


def test_a_healthy_run_has_no_findings_and_nothing_to_tick() -> None:
    healthy = viewed(run_of(rank({"forward": 10_000, "backward": 20_000})))
    assert findings_section(healthy) is None
    section = run_section(healthy)
    assert section is not None
    assert not any(isinstance(block, WhatIf) for block in section.blocks)


def test_the_pieces_of_the_whole_run_are_all_of_it(tmp_path: Path) -> None:
    """Against what the writer was told: 2.4 s of start-up, and evaluations and checkpoints."""
    write_run(tmp_path, steps=300)
    section = run_section(viewed(read_run(tmp_path)))
    assert section is not None
    drawn = section.blocks[0]
    assert isinstance(drawn, Chart)
    for text in ("start-up: 2.40 s", "evaluation: 3.30 s", "checkpoint: 360 ms", "steps: "):
        assert text in drawn.svg.text, text
    widths = re.findall(r'<rect x="[\d.]+%" width="([\d.]+)%"', drawn.svg.text)
    assert sum(map(float, widths)) == pytest.approx(100, abs=0.1)


def test_a_part_has_the_same_share_everywhere_on_the_page(tmp_path: Path) -> None:
    write_run(tmp_path, steps=300)
    seen = viewed(read_run(tmp_path))
    share = figures(headline_figures(seen))["waiting for data"].partition(";")[0]
    section = step_section(seen)
    assert section is not None
    bar, on_device, table, tree = section.blocks[:4]
    assert isinstance(bar, Chart)
    # Times alone: a part's share is that of the wall clock, wherever it is named.
    assert isinstance(on_device, Chart)
    assert "%," not in on_device.svg.text
    assert isinstance(table, Table)
    assert isinstance(tree, Tree)
    assert f", {share}" in bar.svg.text
    assert {row[0].text: row[2].text for row in table.rows}["data"] == share
    assert {node.name: node.numbers[0] for node in tree.nodes}["data"] == share


def test_a_finding_brings_its_explanation_along() -> None:
    waiting = viewed(run_of(rank({"data": 20_000, "forward": 10_000})))
    section = findings_section(waiting)
    assert section is not None
    block = section.blocks[0]
    assert isinstance(block, Findings)
    for entry in block.entries:
        page = explain(entry.finding.code).text
        assert entry.explanation is not None
        said = unescape(re.sub(r"<[^>]+>", "", entry.explanation.text))
        assert Counter(re.findall(r"\w+", said)) == Counter(re.findall(r"\w+", _plain(page)))
        assert "<h4>What to change</h4>" in entry.explanation.text


def _plain(text: str) -> str:
    """Markdown without what only tells how it looks: fences with their language, list numbers."""
    return re.sub(r"^```\w*$|^\d+\. ", "", text, flags=re.MULTILINE)


def test_a_column_that_tells_nothing_of_any_row_is_not_shown() -> None:
    rows = tuple((text_cell(name), text_cell("not measured"), text_cell("1")) for name in "ab")
    columns = named_columns("part", "on the device", "count")
    assert Table(caption="", columns=columns, rows=rows).shown == (0, 2)
    told_of_one = (*rows, (text_cell("c"), text_cell("3 ms"), text_cell("1")))
    assert Table(caption="", columns=columns, rows=told_of_one).shown == (0, 1, 2)


def test_the_share_beside_a_gain_is_the_one_that_gives_it() -> None:
    """Two thirds of the steps compute for 10 ms, a third for 9 ms, which the bound counts on."""
    forward = [9_000 if step % 3 == 0 else 10_000 for step in range(100)]
    text = told(run_section(viewed(run_of(rank({"data": 10_000, "forward": forward})))))
    assert "up to 2.19x faster" in text
    assert "54.2%" in text, "1 - 1 / 2.19"
    assert "50.8%" not in text, "of that, the wait alone"


def test_what_is_left_of_a_log_is_estimated_with_its_error() -> None:
    found = figures(headline_figures(log_view("topreid.txt")))
    assert "±" in found["left, estimated"]


def test_a_log_without_times_has_neither_bar_nor_course() -> None:
    silent = log_view("guide_reid.log")
    assert step_section(silent) is None
    assert over_time_section(silent) is None
    assert timeline_section(silent) is None
    assert modules_section(silent) is None
    assert ranks_section(silent) is None
    assert machine_section(silent) is None
    assert figures(headline_figures(silent))["a step"].startswith("not known")


def test_a_number_that_a_log_mislabels_is_told() -> None:
    text = told(log_section(log_view("topreid.txt")))
    assert "Printed numbers that are not what their names say" in text
    assert "Time per batch" in text


def test_a_log_is_named_and_not_placed() -> None:
    assert str(LOGS) not in told(log_section(log_view("timm.log")))


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"exit_code": 3, "signal": None}, "ended with code 3 after 12.0 s"),
        ({"exit_code": None, "signal": "SIGKILL"}, "was ended by SIGKILL after 12.0 s"),
        ({"exit_code": 0, "signal": None, "stopped_by_us": True}, "once enough was measured"),
    ],
)
def test_how_a_command_ended_is_told(how: dict[str, Any], text: str) -> None:
    values = {"wall_s": 12.0, "interrupted": False, "stopped_by_us": False} | how
    ended = Ended(**values)
    reading = raw("ended", **values)
    assert ended.wall_s == 12.0
    assert text in told(machine_section(view(reading)))


def machine() -> Machine:
    rate = measured([1e12, 1.1e12, 1.2e12], "FLOP/s")
    assert rate is not None
    return Machine(
        system="Linux", kernel="6", architecture="x86_64",
        cpu=Cpu(model="Model X", physical_cores=8, logical_cores=16, affinity_cores=16,
                quota_cores=None, usable_cores=16),
        ram=Ram(total_bytes=64 << 30, available_bytes=None, cgroup_limit_bytes=None,
                cgroup_working_bytes=None, shm_bytes=None, shm_free_bytes=None),
        gpus=(),
        software=Software(python="3.11.7", torch="2.13.0", cuda=None, cudnn=None, triton=None,
                          pillow=None, nvidia_driver=None),
        matrix_rates=(MatrixRate(device="cpu", dtype="fp32", size=1024, threads=16, rate=rate),),
        copy_rates=(), decode_rates=(), volume=None, advice=(), quick=False, took_s=1.0, notes=(),
    )  # fmt: skip


def test_measured_ceilings_come_with_their_spread() -> None:
    from dataclasses import asdict

    text = told(machine_section(view(raw("machine", **asdict(machine())))))
    assert "16 usable cores of Model X" in text
    assert "1.10 TFLOP/s" in text
    assert "1.00 TFLOP/s to 1.20 TFLOP/s in 3 readings" in text


def test_a_moment_beyond_all_calendars_is_not_recorded() -> None:
    record = rank(PARTS)
    attempt = replace(record.attempts[0], started_unix_s=1e300, python="3.11")
    odd = viewed(run_of(replace(record, attempts=(attempt,))))
    assert "last attempt began not recorded" in told(machine_section(odd))


def test_a_proof_reads_as_text() -> None:
    proof = {"fused": True, "workers": 12_000, "note": None, "share": 0.25, "list": [1, 2]}
    text = told(settings_section(view(applied={"optimizer.kind": proof})))
    assert "fused yes, workers 12,000, note not known, share 0.250, list [1, 2]" in text


def test_work_of_a_step_that_was_not_timed_has_no_rate() -> None:
    untimed = viewed(run_of(rank({}, steps=1, readings=[WORK])))
    assert "arithmetic of a step 1.00 TFLOP" in told(settings_section(untimed))
    assert "arithmetic rate" not in told(settings_section(untimed))
    assert "arithmetic rate, over the mean step 28.6 TFLOP/s" in told(settings_section(view(WORK)))


def test_damaged_readings_are_passed_over_and_counted() -> None:
    damaged = view(raw("memory", at_s="no number"), raw("load", gpus=3))
    assert memory_section(damaged) is None
    assert load_section(damaged) is None


def test_memory_that_was_not_measured_is_not_zero() -> None:
    bare = replace(memory(1.0, 5, 5), tree=None, host_total_bytes=None, host_available_bytes=None)
    section = memory_section(view(bare))
    text = told(section)
    assert "not measured: host, in use by anybody" in text
    assert "no control group limits it" in text
    assert " 0 B " not in text
    assert not any(isinstance(block, Chart) for block in (section.blocks if section else ()))


def test_the_scale_of_device_memory_ends_at_its_limit_and_says_what_is_left(tmp_path: Path) -> None:
    write_run(tmp_path, steps=60)
    text = told(memory_section(viewed(read_run(tmp_path))))
    assert "44.0 GiB of 80.0 GiB never reserved" in text
    assert ">80.0 GiB</text>" in text


def test_a_device_that_does_not_count_has_no_activations() -> None:
    owners = replace(OWNERS, device="cpu", peak_bytes=None)
    text = told(memory_section(view(owners)))
    assert "Activations: not measured" in text
    assert "activations and scratch" not in text


def test_owners_of_nothing_are_no_bar() -> None:
    empty = replace(OWNERS, parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0, peak_bytes=0)
    assert memory_section(view(empty)) is None


def test_a_host_without_a_gpu_has_no_gpu_lines() -> None:
    section = load_section(view(load(), load()))
    assert section is not None
    assert section.title == "Processor and disk"
    text = told(section)
    assert "GPU busy" not in text
    assert "no GPU was seen" in text


def test_damaged_samples_and_batches_without_stages_are_told() -> None:
    reading = LoaderReading(
        batches=5, workers=0, prefetch=None, stages_us={}, busy_us=10, cpu_us=9, queue_us=0,
        wait_us=3, short_us=1, largest_bytes=100,
    )  # fmt: skip
    from dataclasses import asdict

    section = loader_section(
        view(raw("loader", **asdict(reading)), raw("skipped", samples={"torn": 2}, total=2))
    )
    text = told(section)
    assert "2 reads of damaged samples skipped" in text
    assert "Making a batch" not in text
    assert "5 batches, the largest of 100 B" in text


def test_a_cache_that_was_looked_at_once_has_numbers_and_no_course() -> None:
    cache = {
        "policy": "keep", "backing": "shared memory", "items": 3, "used_bytes": 10,
        "budget_bytes": 100, "hits": 0, "misses": 0, "evictions": 0, "too_large": 0,
    }  # fmt: skip
    text = told(loader_section(view(raw("cache", **cache))))
    assert "hit rate not measured" in text
    assert "Hit rate of the cache since" not in text


def test_few_ranks_are_bars_and_many_a_heat_map() -> None:
    few = [rank(PARTS, number=n, world=16, samples=None) for n in range(16)]
    section = ranks_section(viewed(run_of(*few)))
    assert section is not None
    assert len([block for block in section.blocks if isinstance(block, Chart)]) == 16
    many = [rank(PARTS, number=n, world=20, samples=None) for n in range(20)]
    section = ranks_section(viewed(run_of(*many)))
    assert section is not None
    [chart] = [block for block in section.blocks if isinstance(block, Chart)]
    assert "drawing heat" in chart.svg.text
    assert "20 ranks. The verdict rests on rank 0. No rank and no host stands out." in told(section)


def test_a_part_that_one_run_did_not_measure_is_no_difference() -> None:
    before, after = rank(PARTS, samples=4), rank({**PARTS, "extra": 9_000}, samples=4)
    runs = runs_view(judge_records([run_of(before, source="a"), run_of(after, source="b")]))
    text = told(differences_section(runs))
    assert "extra not measured" in text
    assert "Not checked: " in text
    assert "extra not measured 9.00 ms not measured" in text


def test_a_difference_without_an_interval_is_shown_without_one() -> None:
    one = viewed(run_of(rank(PARTS), source="a"))
    found = compare(one.record, one.record)
    change = PartChange(
        part="data", before_s=0.1, after_s=0.2, low_s=None, high_s=None, beyond_noise=False
    )
    pair = Pair(
        view=one, result="slower", message="told",
        comparison=replace(found, parts=(change,), notes=("a note",), same_work=()),
    )  # fmt: skip
    text = told(differences_section(RunsView(views=(one, one), pairs=(pair,))))
    assert "+100 ms" in text
    assert "a note" in text


def test_a_slower_part_beyond_noise_is_marked_so() -> None:
    def slow(mean_us: float, seed: int) -> RankRecord:
        return rank({"data": noisy(mean_us, 200, seed), "forward": 10_000}, steps=200)

    records = [run_of(slow(us, n), source=str(n)) for n, us in enumerate((2_000, 9_000))]
    assert "slower, beyond noise" in told(differences_section(runs_view(judge_records(records))))


def test_runs_without_steps_stand_side_by_side_without_numbers() -> None:
    empty = run_of(rank({}, steps=1, samples=None))
    runs = runs_view(judge_records([empty, empty]))
    assert "not measured" in told(side_by_side_section(runs))
    assert series_section(runs) is None


def test_logs_over_one_another_are_not_called_measured() -> None:
    runs = runs_view(judge_records(read_logs([LOGS / "mmcv_iter.log", LOGS / "timm.log"])))
    assert "as a log tells" in told(series_section(runs))
    assert "Differences" in told(differences_section(runs))


def nodes_of(tree: Tree) -> list[Node]:
    found, rest = [], list(tree.nodes)
    while rest:
        node = rest.pop()
        found.append(node)
        rest += node.children
    return found


def test_the_tree_nests_as_the_spans_do(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=30)
    section = step_section(viewed(read_run(tmp_path / "run")))
    assert section is not None
    [tree] = [block for block in section.blocks if isinstance(block, Tree)]
    forward = next(node for node in tree.nodes if node.name == "forward")
    assert [node.name for node in forward.children] == ["spike", "fusion", "stages"]
    assert [node.name for node in forward.children[2].children] == ["attention"]
    assert sum(node.share for node in forward.children) <= forward.share


def test_a_tree_of_thousands_keeps_the_largest_and_says_so(tmp_path: Path) -> None:
    time = FakeClock()
    writer = RecordWriter(str(tmp_path / "rank-0.jsonl"), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for _ in range(30):
        clock.begin_step()
        with clock.span("forward"):
            for number in range(400):
                with clock.span(f"part {number}"):
                    time.advance(number + 1)
    clock.close()
    writer.close()
    section = step_section(viewed(read_run(tmp_path)))
    assert section is not None
    [tree] = [block for block in section.blocks if isinstance(block, Tree)]
    names = {node.name for node in nodes_of(tree)}
    assert len(names) == 300
    assert "part 399" in names
    assert "part 0" not in names
    assert "101 smaller parts left out" in (tree.note or "")
    assert "single steps kept no parts" in (section.lead or "")
    assert "forward 80.2 ms, 100.0%" in told(section)


def test_a_tree_deeper_than_anybody_opens_is_cut_and_says_so(tmp_path: Path) -> None:
    time = FakeClock()
    writer = RecordWriter(str(tmp_path / "run" / "rank-0.jsonl"), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for _ in range(30):
        clock.begin_step()
        with ExitStack() as opened:
            for level in range(500):
                opened.enter_context(clock.span(f"level {level}"))
                time.advance(10)
    clock.close()
    writer.close()
    page_of([tmp_path / "run"], tmp_path / "page.html")
    section = step_section(viewed(read_run(tmp_path / "run")))
    assert section is not None
    [tree] = [block for block in section.blocks if isinstance(block, Tree)]
    assert [node.name for node in nodes_of(tree)] == [f"level {level}" for level in range(40)]
    assert "460 parts below 40 others left out" in (tree.note or "")


def test_a_step_without_parts_inside_has_no_tree() -> None:
    section = step_section(view())
    assert section is not None
    assert not any(isinstance(block, Tree) for block in section.blocks)


def test_spans_that_were_not_recorded_are_counted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=30)
    path.write_text(path.read_text().replace('"left_out":0', '"left_out":7'))
    text = told(timeline_section(viewed(read_run(tmp_path / "run"))))
    assert "7 more spans in step 0 were not recorded" in text


def test_a_host_alone_says_that_the_device_was_not_measured(tmp_path: Path) -> None:
    from pitstop_probe import Clock, RecordWriter
    from tests.fakes import FakeClock

    time = FakeClock()
    writer = RecordWriter(str(tmp_path / "rank-0.jsonl"), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for _ in range(30):
        clock.begin_step()
        with clock.span("forward"):
            time.advance(500)
    clock.close()
    writer.close()
    text = told(timeline_section(viewed(read_run(tmp_path))))
    assert "The device's clock: not measured" in text


def test_a_run_known_to_be_on_a_cpu_has_no_device_to_speak_of(tmp_path: Path) -> None:
    time = FakeClock()
    command = ["/lib/pitstop/__main__.py", "train", "configs/demo.yaml", "train.steps=30"]
    writer = RecordWriter(str(tmp_path / "rank-0.jsonl"), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    setup = EngineSetup(
        model="VRT", parameters=1, number_format="float32", device="cpu", settings={}
    )
    writer.reading("engine", asdict(setup))
    for _ in range(30):
        clock.begin_step()
        with clock.span("forward"):
            time.advance(500)
    clock.close()
    writer.close()
    path = tmp_path / "rank-0.jsonl"
    head, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(head) | {"command": command}) + "\n" + rest)
    found = viewed(read_run(tmp_path))
    text = told(timeline_section(found))
    assert text.startswith("The host over a few steps Where the parts lay in sampled steps.")
    assert "device" not in text
    assert next(iter(origin_of(found))) == "pitstop train demo.yaml"
    assert "cpu" in origin_of(found)


def test_loads_that_say_nothing_are_no_section() -> None:
    """A first reading has no rates yet: a table of names alone is no table."""
    nothing = replace(
        load(), tree_cpu_cores=None, host_cpu_cores=None, throttled_share=None,
        tree_read_bytes_per_s=None, tree_write_bytes_per_s=None, disk_read_bytes_per_s=None,
    )  # fmt: skip
    assert load_section(view(nothing)) is None


def test_one_reading_of_host_memory_is_no_chart() -> None:
    readings = [memory(at_s, 2 * GIB, GIB) for at_s in (0.0, 2.0)]
    one, two = (memory_section(view(*readings[:n])) for n in (1, 2))
    assert one is not None
    assert two is not None
    kinds = [[type(block).__name__ for block in section.blocks] for section in (one, two)]
    assert kinds == [["Table"], ["Chart", "Table"]]


def test_quartiles_of_nothing_are_none() -> None:
    assert quartiles([]) is None
    assert quartiles([float("nan")]) is None
    assert quartiles([1.0, 2.0, 3.0, float("inf")]) == (1.5, 2.0, 2.5)
