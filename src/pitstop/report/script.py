"""What is said about a script that ran under measurement, beside the verdict."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from pitstop.records.script import Ended, Untrained
from pitstop.records.units import count_text, seconds_text, speedup_text
from pitstop.records.verdict import Ablation
from pitstop.report.terminal import literal

# What shells and argparse mean by their codes.
_CODES: Final = {
    2: "code 2 most often means wrong arguments, or a file that is not there",
    126: "code 126 of a shell: a command in it cannot be run",
    127: "code 127 of a shell: a command in it was not found",
}


def ended_early(steps: int) -> Text:
    """Say that the script did not come to its own end, and what lets it."""
    return Text(
        f"\nthe script was ended by pitstop after {count_text(steps, 'measured step')} (--steps), "
        "not by itself; with --detach it runs on to its own end"
    )


def next_command(folder: Path, *, code: str | None = None) -> RenderableType:
    """Say where the record is and what to do with it, as one types it.

    Args:
        folder: Holds the record.
        code: The first finding, which can be explained; None where there is none.
    """
    command = shlex.join(("pitstop", "report", str(folder), "-o", "report.html"))
    lines = [f"record: {literal(str(folder))}", f"next: {literal(command)}"]
    if code is not None:
        lines.insert(1, f"how to fix it: pitstop explain {code}")
    return Group(*map(Text, lines))


def nothing_seen(
    ended: Ended, seen: Sequence[Untrained], *, failure: str | None = None
) -> tuple[str, tuple[str, ...]]:
    """Say what was seen of a command in which no training step was: a message, and notes."""
    if ended.exit_code and not ended.interrupted:
        return _failed(ended, seen, failure)
    how = f"was ended by {ended.signal}" if ended.signal else f"ended with code {ended.exit_code}"
    head = f"the command {how} after {seconds_text(ended.wall_s)}"
    lines: list[str] = []
    if ended.interrupted:
        lines.append("it was interrupted")
    if not seen:
        lines.append(
            "no Python process in it finished importing torch, or the probe was not loaded: an "
            "interpreter started with -I, -E or -S, or with a new environment, leaves it out"
        )
    lines += [_untrained(process) for process in seen[:4]]
    passes = sum(process.backward_passes for process in seen)
    if passes:
        return f"{head}: {_passes_without_update(passes)}", tuple(lines)
    return f"{head}, and no optimizer of torch had made a step", tuple(lines)


def _failed(
    ended: Ended, seen: Sequence[Untrained], failure: str | None
) -> tuple[str, tuple[str, ...]]:
    """Say that a command failed by itself before it trained: that is no fault of the measuring."""
    code = ended.exit_code or 0
    lines = [] if failure is None else [f"it failed with {literal(failure)}"]
    if failure is None and code in _CODES:
        lines.append(_CODES[code])
    lines.append("what it wrote itself stands above; run it without pitstop to see it alone")
    lines += [_untrained(process) for process in seen[:4] if process.backward_passes]
    message = f"the command failed with exit code {code} after {seconds_text(ended.wall_s)}"
    return f"{message}, before its first training step", tuple(lines)


def _passes_without_update(passes: int) -> str:
    return f"{count_text(passes, 'backward pass')}, no update of weights seen"


def _untrained(process: Untrained) -> str:
    did = "not training"
    if process.backward_passes:
        did = _passes_without_update(process.backward_passes)
    elif process.compiled:
        did = (
            "no training seen outside compiled functions; a step that is compiled as a whole "
            "cannot be measured: call backward() outside of it"
        )
    return f"seen: {literal(' '.join(process.command))} with torch {process.torch}, {did}"


def ablation_report(test: Ablation) -> RenderableType:
    """Set what leaving a part out really gave beside what was predicted."""
    if test.measured is None:
        return Text(f"the run without {test.part} left too little to compare with")
    low, high = (speedup_text(end) for end in (test.low, test.high))
    lines = [
        f"without {test.part}: {speedup_text(test.measured)} faster "
        f"(99% CI {low} to {high}, {count_text(test.steps, 'step')}); {_beside(test)}",
        *(f"  left all the same: {literal(text)}" for text in test.left),
    ]
    return Group(*map(Text, lines))


def _beside(test: Ablation) -> str:
    if test.predicted is None or test.measured is None:
        return "no finding predicted a gain"
    said = f"predicted: up to {speedup_text(test.predicted)}"
    if test.measured <= test.predicted:
        return said
    is_noise = test.low is None or test.low <= test.predicted
    return f"{said}, exceeded {'within' if is_noise else 'beyond'} noise"
