"""What two runs of a script printed, compared: lines, losses, steps, shares."""

import re
from collections.abc import Mapping, Sequence

_NUMBER = re.compile(r"-?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?%?")
_SPACES = re.compile(r"\s+")
_BAR = re.compile("[━╸╺█▉▊▋▌▍▎▏]+|-{4,}")
"""Of a progress bar or the head of a column, which are as long as the numbers beside them."""

_TIME = re.compile(r"(?:#(?:us|ms|s|m|h|D)(?![a-z]))+")
"""A duration, which is written in more units when it is longer."""

_FURTHER = 10.0
"""Runs that are not equal to the bit drift apart; how far two did is a poor idea of how far a third
may. On an H200 a training was three times as far from two of the same as these from each other."""

GROUPS: Mapping[str, str] = {
    "data": "data",
    "copy": "copy",
    "backward": "backward",
    "recompute": "backward",
    "optimizer": "optimizer",
}
"""Parts of the doctor that a stopwatch can time by itself; the others are one group, "rest"."""

TIMED = tuple(dict.fromkeys(GROUPS.values()))

OUTSIDE = frozenset(
    {"evaluation", "checkpoint", "epoch boundary", "compile", "start-up", "pitstop"}
)
"""Parts of a run, but of no step."""


def lines(output: str) -> list[str]:
    """Lines that a script printed, those of a progress bar included."""
    return [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip()]


def skeleton(output: str) -> list[str]:
    """Lines without their numbers, which may be times."""
    unnumbered = (_TIME.sub("#", _NUMBER.sub("#", line)) for line in lines(output))
    unspaced = (_SPACES.sub(" ", _BAR.sub("", line)) for line in unnumbered)
    # An array's columns are as wide as its numbers.
    return [line.replace(" ]", "]").replace("[ ", "[") for line in unspaced]


def losses(output: str, pattern: str) -> list[float]:
    """Losses in the order in which they were printed."""
    return [float(found) for found in re.findall(pattern, output)]


def same_output(bare: Sequence[str], watched: str) -> bool | None:
    """Whether a watched run printed the lines of the bare ones; None where those differ."""
    # Sorted, for several ranks print as they come.
    first, *others = [sorted(skeleton(output)) for output in bare]
    if any(other != first for other in others):
        return None
    return sorted(skeleton(watched)) == first


def same_losses(bare: Sequence[Sequence[float]], watched: Sequence[float]) -> bool | None:
    """Whether losses are those of the bare runs: to the bit, or about as near as those are.

    None where the script printed none, and where one bare run cannot say whether two agree.
    """
    first = bare[0]
    if not first and not watched:
        return None
    if any(len(other) != len(first) for other in bare):
        return None
    if len(watched) != len(first):
        return False
    if len(bare) == 1:
        return True if list(watched) == list(first) else None
    apart = max(abs(a - b) for other in bare[1:] for a, b in zip(first, other, strict=True))
    return all(
        min(abs(value - other[number]) for other in bare) <= _FURTHER * apart
        for number, value in enumerate(watched)
    )


def true_steps(pattern: str, output: str) -> int | None:
    """The last number that the pattern finds."""
    found = re.findall(pattern, output)
    return int(found[-1]) if found else None


def grouped(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares by what a stopwatch can tell apart."""
    groups: dict[str, float] = dict.fromkeys((*TIMED, "rest"), 0.0)
    for part, share in shares.items():
        if part in OUTSIDE:
            continue
        groups[GROUPS.get(part.split("/")[0], "rest")] += share
    whole = sum(groups.values())
    return {name: share / whole for name, share in groups.items()} if whole else groups


def stopwatch_groups(shares: Mapping[str, float]) -> dict[str, float]:
    """The stopwatch's shares in the same groups; what no clock saw is rest."""
    known = {name: shares.get(name, 0.0) for name in TIMED}
    return {**known, "rest": max(0.0, 1.0 - sum(known.values()))}


def worst_difference(said: Mapping[str, float], timed: Mapping[str, float]) -> float:
    """The largest difference of a part, in points."""
    return max(abs(said.get(part, 0.0) - share) for part, share in timed.items()) * 100
