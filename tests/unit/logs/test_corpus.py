"""Each log of the corpus yields the facts that stand beside it in ``NAME.facts.json``."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitstop.errors import RecordError
from pitstop.logs.read import read_logs
from pitstop.records.logs.windows import WindowTable
from pitstop.records.run import RankRecord

CORPUS = Path(__file__).parents[2] / "data" / "logs"
SUFFIX = ".facts.json"
LOGS = sorted(path.name.removesuffix(SUFFIX) for path in CORPUS.glob("*" + SUFFIX))


def near(pair: list[float]) -> Any:
    """Read ``[value, tolerance]``: absolute for tolerances of durations, as written."""
    return pytest.approx(pair[0], abs=pair[1] or 1e-9)


def table_of(rank: RankRecord) -> WindowTable:
    assert rank.windows is not None
    return rank.windows


def steady(table: WindowTable) -> float | None:
    times = table.step_s[table.is_steady]
    return float(np.median(times)) if len(times) else None


def check_source(table: WindowTable, facts: dict[str, Any]) -> None:
    log = table.log
    if "format" in facts:
        assert set(log.format.split(" + ")) == set(facts["format"].split(" + "))
    if "format_has" in facts:
        assert facts["format_has"] in log.format.split(" + ")
    assert log.confidence >= facts.get("min_confidence", 0.4)
    assert log.confidence <= facts.get("max_confidence", 1.0)
    for name in ("batch_size", "workers", "version", "total_steps", "total_epochs"):
        if name in facts:
            assert getattr(log, name) == facts[name], name
    if "steps_per_epoch" in facts:
        assert log.steps_per_epoch == facts["steps_per_epoch"]
    for part in facts.get("notes", ()):
        assert any(part in note for note in log.notes), (part, log.notes)
    for column, meaning in facts.get("meaning", {}).items():
        assert table.note(column).meaning == meaning


def check_steady(table: WindowTable, expected: list[float] | None) -> None:
    value = steady(table)
    if expected is None:
        assert value is None
        return
    assert value is not None
    assert abs(value - expected[0]) <= expected[1] * expected[0], value


def check_rows(table: WindowTable, facts: dict[str, Any]) -> None:
    train = ~table.of_kind("eval", "epoch")
    if "train_rows" in facts:
        assert int(train.sum()) == facts["train_rows"]
    if "last_step" in facts:
        last = float(table.last_step[train][-1])
        assert math.isnan(last) if facts["last_step"] is None else last == facts["last_step"]
    if "steady_s" in facts:
        check_steady(table, facts["steady_s"])
    for kind, count in facts.get("kinds", {}).items():
        assert int((table.kind == kind).sum()) == count, (kind, table.kind.tolist())
    for column in ("lr", "memory_bytes", "samples_per_s"):
        if column in facts:
            assert getattr(table, column)[train][-1] == facts[column]
    if "data_s" in facts:
        assert float(np.median(table.data_s[table.is_steady])) == near(facts["data_s"])


def check_epochs(table: WindowTable, facts: dict[str, Any]) -> None:
    epochs = table.kind == "epoch"
    if "epoch_step_s" in facts:
        assert float(table.step_s[epochs][-1]) == near(facts["epoch_step_s"])
    if "epoch_samples_per_s" in facts:
        assert table.samples_per_s[epochs][-1] == facts["epoch_samples_per_s"]


def check_rest(rank: RankRecord, table: WindowTable, facts: dict[str, Any]) -> None:
    if "attempts" in facts:
        assert len(rank.attempts) == facts["attempts"]
    for name, (step, value) in facts.get("scalars", {}).items():
        series = rank.scalars[name]
        assert series.step[-1] == step, name
        assert series.value[-1] == pytest.approx(value, rel=1e-6)
    for name, expected in facts.get("events", {}).items():
        events = [event for event in rank.events if event.name == name]
        assert len(events) == expected["count"], [e.name for e in rank.events]
        if "mean_s" in expected:
            mean = sum(event.wall_us for event in events) / len(events) / 1e6
            assert mean == near(expected["mean_s"])
            assert all(event.detail["formula"] for event in events)
    found = {item.code: item for item in table.log.disagreements}
    for code, expected in facts.get("disagreements", {}).items():
        assert code in found, sorted(found)
        for name, value in expected.items():
            seen = getattr(found[code], name)
            assert seen == (near(value) if isinstance(value, list) else value), (code, name)
    assert not set(facts.get("no_disagreements", ())) & found.keys()


@pytest.mark.parametrize("name", LOGS)
def test_a_log_yields_the_facts_beside_it(name: str) -> None:
    facts = json.loads((CORPUS / (name + SUFFIX)).read_text(encoding="utf-8"))
    if "error" in facts:
        with pytest.raises(RecordError, match=facts["error"]):
            read_logs([CORPUS / name])
        return
    runs = read_logs([CORPUS / name])
    assert len(runs) == facts["runs"]
    rank = runs[0].first
    table = table_of(rank)
    assert table.log.files == (str(CORPUS / name),)
    check_source(table, facts)
    check_rows(table, facts)
    check_epochs(table, facts)
    check_rest(rank, table, facts)


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len(LOGS) >= 30
    assert sum(name.startswith("broken_") for name in LOGS) >= 6
