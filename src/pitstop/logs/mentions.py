"""What a file speaks of anywhere, read or not: only what it never mentions is not in it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pitstop.logs.lines import portions

_WORDS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "time of a step": (
        b"time", b"took", b"elapsed", b"eta:", b"eta ", b"speed", b"sec", b"it/s", b"s/it",
        b"/step", b"fps", b"duration", b"hour", b"minute",
    ),
    "wait for data": (b"data time", b"data_time", b"datatime", b"data:", b"data ", b"load"),
    "memory": (b"mem", b"vram", b"gib", b"mib", b" mb", b" gb"),
    "learning rate": (b"lr", b"learning"),
    "losses": (b"loss", b"nll", b"ppl", b"perplexity", b"error", b"cost"),
}  # fmt: skip
_CLOCK = re.compile(rb"\d:\d\d")
_TIMESTAMPS = "timestamps"


def mentioned(path: Path) -> tuple[str, ...]:
    """Name what the file mentions, in the words of what a log may lack.

    Words are looked for, not numbers: one that means something else costs a statement about what
    is missing, one that was not looked for costs a wrong statement.
    """
    left = dict(_WORDS)
    found: list[str] = []
    has_clock = False
    for portion in portions(path):
        text = portion.lower()
        for name in [name for name, words in left.items() if any(word in text for word in words)]:
            found.append(name)
            del left[name]
        has_clock = has_clock or _CLOCK.search(text) is not None
        if has_clock and not left:
            break
    return (*found, *([_TIMESTAMPS] if has_clock else []))
