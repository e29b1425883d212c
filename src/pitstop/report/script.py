"""What is said about a script that ran under measurement, beside the verdict."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from pitstop.records.script import Ended, Untrained
from pitstop.records.verdict import BoundTest
from pitstop.report.terminal import literal
from pitstop.report.units import count_text, seconds_text, speedup_text


def nothing_seen(ended: Ended, seen: Sequence[Untrained]) -> tuple[str, tuple[str, ...]]:
    """Say what was seen of a command in which no training step was: a sentence, and notes."""
    how = f"was ended by {ended.signal}" if ended.signal else f"ended with code {ended.exit_code}"
    head = f"the command {how} after {seconds_text(ended.wall_s)}"
    lines: list[str] = []
    if ended.interrupted:
        lines.append("it was interrupted")
    if not seen:
        lines.append(
            "no Python in it imported torch to the end, or none could be reached: an interpreter "
            "started with -I, -E or -S, or one that replaces its environment, leaves the probe out"
        )
    lines += [_untrained(process) for process in seen[:4]]
    return f"{head}, and no optimizer of torch had made a step", tuple(lines)


def _untrained(process: Untrained) -> str:
    did = "not training"
    if process.backward_passes:
        did = f"backward {count_text(process.backward_passes, 'time')}, and no update seen"
    elif process.compiled:
        did = (
            "no training outside of compiled functions; one that holds a whole step is not seen "
            "into: let backward() be called outside of it"
        )
    return f"seen: {literal(' '.join(process.command))} with torch {process.torch}, {did}"


def bound_report(test: BoundTest) -> RenderableType:
    """Set what leaving a part out really gave beside what was predicted."""
    if test.measured is None:
        return Text(f"the run without {test.part} left too little to compare with")
    low, high = (speedup_text(end) for end in (test.low, test.high))
    lines = [
        f"without {test.part}: {speedup_text(test.measured)} as fast "
        f"(99 % within {low} to {high}, {count_text(test.steps, 'step')}); {_beside(test)}",
        *(f"  left all the same: {literal(words)}" for words in test.left),
    ]
    return Group(*map(Text, lines))


def _beside(test: BoundTest) -> str:
    if test.predicted is None or test.measured is None:
        return "no finding predicted a gain"
    said = f"predicted: at most {speedup_text(test.predicted)}"
    if test.measured <= test.predicted:
        return said
    is_noise = test.low is None or test.low <= test.predicted
    return f"{said}, above which it lies {'within' if is_noise else 'beyond'} noise"
