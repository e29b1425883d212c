"""What is said about a script that ran under measurement, beside the verdict."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from pitstop.records.run import RunRecord
from pitstop.records.script import Ended
from pitstop.records.summary import summarise
from pitstop.records.verdict import Verdict
from pitstop.report.terminal import literal
from pitstop.report.units import count_text, seconds_text, speedup_text

_PART_CODES = {"data": ("DATA",), "sync": ("SYNC",), "log": ("LOG",)}


def nothing_seen(
    ended: Ended, seen: Sequence[tuple[Sequence[str], str]]
) -> tuple[str, tuple[str, ...]]:
    """Say what was seen of a command in which no training step was: a sentence, and notes."""
    how = f"was ended by {ended.signal}" if ended.signal else f"ended with code {ended.exit_code}"
    head = f"the command {how} after {seconds_text(ended.wall_s)}"
    lines: list[str] = []
    if ended.interrupted:
        lines.append("it was interrupted")
    if not seen:
        lines.append(
            "no Python in it imported torch to the end, or none could be reached: an interpreter "
            "started with -I or -E, or one that replaces its environment, leaves the probe out"
        )
    for command, version in seen[:4]:
        lines.append(f"seen: {literal(' '.join(command))} with torch {version}, not training")
    return f"{head}, and no optimizer of torch had made a step", tuple(lines)


def bound_report(
    part: str, verdict: Verdict, plain: RunRecord | None, without: RunRecord | None
) -> RenderableType:
    """Set what leaving a part out really gave beside what was predicted."""
    before, after = _median_step_us(plain), _median_step_us(without)
    if before is None or after is None:
        return Text(f"the run without {part} left too little to compare with")
    predicted = next(
        (
            finding.bound.speedup
            for finding in verdict.findings
            if finding.bound is not None and finding.code.startswith(_PART_CODES[part])
        ),
        None,
    )
    said = (
        "no finding predicted a gain" if predicted is None else f"at most {speedup_text(predicted)}"
    )
    return Group(
        Text(f"without {part}: {speedup_text(before / after)} as fast; predicted: {said}"),
        Text(
            f"  median step {seconds_text(before / 1e6)} with it, {seconds_text(after / 1e6)} "
            f"without, over {count_text(summarise(without.first).steps if without else 0, 'step')}"
        ),
    )


def _median_step_us(record: RunRecord | None) -> float | None:
    if record is None or record.first.steps is None:
        return None
    walls = record.first.steps.wall_us
    settled = sorted(walls[len(walls) // 4 :].tolist())
    return settled[len(settled) // 2] if settled else None
