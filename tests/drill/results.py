"""Counts of all drills so far: each run adds to them."""

import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

_MOST_EXAMPLES = 20
_MOST_TIMES = 2000


@dataclass(slots=True)
class Tally:
    """What one part of a drill tried, and what came of it."""

    tried: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    """A few words of what went wrong, to be printed: they name folders of this machine."""
    recovery_s: list[float] = field(default_factory=list)
    times_s: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    """Figures of this run alone; the latest stand in the results."""

    def count(self, what: str, troubles: Sequence[str], text: str = "") -> None:
        """Count one try."""
        self.tried[what] += 1
        self.survived[what] += not troubles
        for trouble in troubles:
            self.troubles[f"{what}: {trouble}"] += 1
        if troubles and len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(f"{what}: {', '.join(troubles)}: {text[-600:]}")

    def recovered(self, took_s: float) -> None:
        """Note how long it took from a fault to the next step."""
        self.recovery_s.append(round(took_s, 3))

    def took(self, what: str, took_s: float) -> None:
        """Note how long an answer to a fault took."""
        self.times_s.setdefault(what, []).append(round(took_s, 3))


def add(part: str, tally: Tally, path: Path, *, seconds: float) -> None:
    """Add a tally to the results in a file."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found["torch"] = torch.__version__.partition("+")[0]
    found["python"] = platform.python_version()
    parts = found.setdefault("parts", {})
    whole = parts.setdefault(part, {"runs": 0, "seconds": 0.0})
    whole["runs"] += 1
    whole["seconds"] = round(whole["seconds"] + seconds, 1)
    for name in ("tried", "survived", "troubles"):
        sums = Counter(whole.get(name, {}))
        sums.update(getattr(tally, name))
        whole[name] = dict(sorted(sums.items()))
    whole["recovery_s"] = [*whole.get("recovery_s", ()), *tally.recovery_s][-_MOST_TIMES:]
    times = whole.setdefault("times_s", {})
    for name, values in tally.times_s.items():
        times[name] = [*times.get(name, ()), *values][-_MOST_TIMES:]
    whole["peak_bytes"] = max(whole.get("peak_bytes", 0), tally.peak_bytes)
    if tally.extra:
        whole["latest"] = tally.extra
    path.write_text(json.dumps(found, indent=1) + "\n")
