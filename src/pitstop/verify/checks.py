"""The closing checklist of one run, from its record: does it end, learn, save, resume, keep up?"""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.judge import judge_record
from pitstop.doctor.rules.memory import host_growth
from pitstop.doctor.targets import judge_targets
from pitstop.errors import CheckpointError, RecordError, install_hint
from pitstop.records.host.growth import (
    FEWEST_READINGS,
    LEAST_GROWTH_BYTES,
    WARM_UP_READINGS,
    line_slope,
)
from pitstop.records.host.memory import MemoryReading
from pitstop.records.run import Array, RankRecord, RunRecord
from pitstop.records.store import read_run
from pitstop.records.units import count_text, quality_text
from pitstop.records.verify.checklist import Checklist, CheckRow, Unit, check_row, checklist
from pitstop.verify.distributions import rank_sum_p

# Of a loss that falls, both ends are a fifth of its values; fewer than two each tell nothing.
_FIFTH: Final = 5
_FEWEST_LOSSES: Final = 10
_FEWEST_RANKED: Final = 5
"""Values of an end that ranks are compared of: with two of each nothing is beyond noise."""
_SURE: Final = 0.05
_LOSS: Final = "loss"

_TARGET_ROWS: Final[Mapping[str, tuple[str, Unit, bool]]] = {
    "samples_per_s": ("samples/s", "samples/s", False),
    "gpu_busy": ("device busy", "share", False),
    "data_wait_ms": ("data wait", "ms", True),
    "hit_rate": ("cache hit rate", "share", False),
    "host_memory": ("host memory in use", "share", True),
}
"""By setting of `targets`: the row's name, its unit, and whether the target is an upper limit."""


def check_run(source: Path, targets: Mapping[str, float]) -> Checklist:
    """Go through the checklist of a run.

    Args:
        source: Folder or file that the run wrote.
        targets: Targets by setting, which stand in for those that the run was given.

    Raises:
        RecordError: It cannot be read, or is a log of another tool.
    """
    record = read_run(source)
    judged = judge_record(record)
    facts = judged.facts
    if facts is None:
        raise RecordError(f"{source} is a log; the checklist needs a run that pitstop measured")
    rank = record.first
    rows = (
        _end_row(rank),
        *_loss_rows(rank),
        _checkpoint_row(source),
        _resume_row(record),
        _memory_row(facts),
        *_target_rows(facts, {**_own_targets(rank), **targets}),
    )
    return checklist(str(source), rows)


def _own_targets(rank: RankRecord) -> dict[str, float]:
    """Give the targets of the run's configuration; runs of other tools have none."""
    found = rank.attempts[-1].about.get("targets") if rank.attempts else None
    if not isinstance(found, Mapping):
        return {}
    return {str(key): float(value) for key, value in found.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _end_row(rank: RankRecord) -> CheckRow:
    """Whether the run made all its steps and said so."""
    about = rank.attempts[-1].about if rank.attempts else {}
    total = about.get("total_steps")
    done = max((block.last + 1 for block in rank.blocks), default=0)
    ending = rank.ending
    evidence = "no ending is recorded: it was killed, or still runs"
    if ending is not None:
        evidence = f"{ending.status} {ending.reason}".strip()
    # A script does not say how many steps it wants to make.
    wanted = total if isinstance(total, int) else done
    return check_row(
        "runs to its end",
        float(done),
        "steps",
        target=float(wanted),
        at_most=False,
        evidence=evidence,
        is_met=ending is not None and ending.status == "finished" and done >= wanted,
    )


def _loss_rows(rank: RankRecord) -> tuple[CheckRow, CheckRow]:
    series = rank.scalars.get(_LOSS)
    values = np.array([]) if series is None else series.value
    warned = [
        reading
        for reading in rank.readings
        if reading.kind == "warning" and reading.values.get("about") == "nonfinite"
    ]
    bad = int(np.sum(~np.isfinite(values))) + len(warned)
    finite = check_row(
        "every value is finite",
        float(bad) if len(values) else None,
        "count",
        target=0,
        at_most=True,
        evidence=f"{count_text(len(values), 'loss value')} recorded, "
        f"{count_text(len(warned), 'update')} left out",
    )
    return _falls_row(values[np.isfinite(values)]), finite


def _falls_row(values: Array) -> CheckRow:
    """Whether the loss ends below where it began, by more than its own noise."""
    change, p_value = loss_fall(values)
    if change is None or p_value is None:
        evidence = f"needs {_FEWEST_LOSSES} recorded losses, has {len(values)}"
        return check_row("loss falls", None, "share", target=0, at_most=True, evidence=evidence)
    is_noise = p_value >= _SURE
    first, last = _ends(values)
    evidence = (
        f"{quality_text(float(first.mean()))} in the first fifth, "
        f"{quality_text(float(last.mean()))} in the last; p = {p_value:.2g}"
    )
    return check_row(
        "loss falls",
        change,
        "share",
        target=0,
        at_most=True,
        evidence=evidence + (", within noise" if is_noise else ""),
        is_met=change < 0 and not is_noise,
    )


def loss_fall(values: Array) -> tuple[float | None, float | None]:
    """Give the change of a loss from its first fifth to its last, and the chance that it is noise.

    A one-sided rank test: a loss that falls steeply scatters in its first fifth, and a test by
    means would take that for noise. None and None where there are too few values.
    """
    if len(values) < _FEWEST_LOSSES:
        return None, None
    first, last = _ends(values)
    before, after = float(first.mean()), float(last.mean())
    change = (after - before) / abs(before) if before else after - before
    fewest = min(_FEWEST_RANKED, len(values) // 2)
    return change, rank_sum_p(*_ends(values, fewest))


def falls(losses: Iterable[float | None]) -> bool:
    """Whether a loss falls beyond its noise; also where there are too few values to tell."""
    _, p_value = loss_fall(np.array([loss for loss in losses if loss is not None]))
    return p_value is None or p_value < _SURE


def _ends(values: Array, fewest: int = 0) -> tuple[Array, Array]:
    fifth = max(len(values) // _FIFTH, fewest)
    return values[:fifth], values[-fifth:]


def _checkpoint_row(source: Path) -> CheckRow:
    """Whether the newest checkpoint reads back: every byte against its sums, every tensor."""
    folder = source / "checkpoints"
    damaged: float | None = None
    if not folder.is_dir():
        evidence = "there is no folder checkpoints beside the record"
    elif find_spec("torch") is None:
        evidence = f"reading one needs torch; {install_hint('torch')}"
    else:
        damaged, evidence = _read_back(folder)
    return check_row(
        "checkpoint reads back", damaged, "count", target=0, at_most=True, evidence=evidence
    )


def _read_back(folder: Path) -> tuple[float | None, str]:
    from pitstop.train.state.checkpoint import find_newest_whole

    newest, skipped = find_newest_whole(folder)
    if newest is None:
        return (float(len(skipped)), skipped[0].reason) if skipped else (None, "nothing was saved")
    try:
        newest.common()
        newest.of_rank(0)
    except CheckpointError as error:
        return 1.0, str(error)
    files = count_text(len(newest.manifest.files), "file")
    return float(len(skipped)), f"{newest.path.name}: {files} as their sums say"


def _resume_row(record: RunRecord) -> CheckRow:
    """Whether a run that was resumed lost steps."""
    rank = record.first
    spans: dict[int, tuple[int, int]] = {}
    for block in rank.blocks:
        low, high = spans.get(block.attempt, (block.first, block.last))
        spans[block.attempt] = (min(low, block.first), max(high, block.last))
    ordered = [spans[attempt] for attempt in sorted(spans)]
    lost: float | None = None
    evidence = "it was never resumed"
    if len(ordered) > 1:
        gaps = [max(0, after[0] - before[1] - 1) for before, after in pairwise(ordered)]
        lost = float(sum(gaps))
        evidence = f"resumed {count_text(len(gaps), 'time')}; steps between that nobody recorded"
    return check_row("resumes", lost, "steps", target=0, at_most=True, evidence=evidence)


def _memory_row(facts: Facts) -> CheckRow:
    """Whether host memory stays flat, as the doctor's rule on growth judges it."""
    readings = [r for r in facts.readings.all(MemoryReading) if r.tree is not None]
    settled = readings[WARM_UP_READINGS:]
    rise: float | None = None
    finding = None
    needed = FEWEST_READINGS + WARM_UP_READINGS
    evidence = (
        f"needs {needed} readings, has {len(readings)}; measure more steps, or with pitstop train "
        "lower log.memory_every_steps"
    )
    if len(settled) >= FEWEST_READINGS:
        at_s = np.array([reading.at_s for reading in settled])
        held = np.array([reading.tree.tree_bytes for reading in settled if reading.tree])
        rise = line_slope(at_s, held)[0] * float(at_s[-1] - at_s[0])
        finding = host_growth(facts)
        evidence = f"along a line through {count_text(len(settled), 'reading')}"
        evidence += "; no steady growth" if finding is None else f"; {finding.summary}"
    return check_row(
        "host memory is flat",
        rise,
        "bytes",
        target=float(LEAST_GROWTH_BYTES),
        at_most=True,
        evidence=evidence,
        # The rule decides: a rise that is no trend is none, however large.
        is_met=finding is None,
    )


def _target_rows(facts: Facts, targets: Mapping[str, float]) -> tuple[CheckRow, ...]:
    """Judge targets by the function that closes a training, and show the others' values."""
    # A row without a target is shown as well, so each is measured against one that does not count.
    asked = {name: targets.get(name, 0.0) for name in _TARGET_ROWS}
    measured = {result.key.partition(".")[2]: result for result in judge_targets(facts, asked)}
    rows = []
    for name, (title, unit, at_most) in _TARGET_ROWS.items():
        value = measured[name].value
        evidence = f"targets.{name}" if name in targets else f"set targets.{name} to judge it"
        rows.append(
            check_row(
                title, value, unit, target=targets.get(name), at_most=at_most, evidence=evidence
            )
        )
    return tuple(rows)
