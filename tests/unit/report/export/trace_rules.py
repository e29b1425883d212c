"""What the Trace Event Format and Perfetto's reader of it ask for, as a checker of whole files.

Written from the public description of the format and Perfetto's notes on it, which name: the kinds
of event and their fields; microseconds as numbers; names of processes and tracks by metadata
events; and slices of one thread that nest perfectly (a reader drops or misplaces one that reaches
over its neighbour's end). It shares no code with the exporter.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

Event = dict[str, Any]

_FIELDS: Final[dict[str, dict[str, tuple[type, ...]]]] = {
    "X": {"name": (str,), "cat": (str,), "ts": (int, float), "dur": (int, float), "args": (dict,)},
    "C": {"name": (str,), "ts": (int, float), "args": (dict,)},
    "M": {"name": (str,), "args": (dict,)},
}
_METADATA: Final[dict[str, tuple[str, type]]] = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


def violations(text: str) -> list[str]:
    """Everything in a file that breaks a rule; an empty list where it loads as it was meant."""
    whole = json.loads(text, parse_constant=_refuse)
    events = whole["traceEvents"]
    found = [] if whole.get("displayTimeUnit") in ("ms", "ns") else ["unknown displayTimeUnit"]
    broken = [message for event in events for message in _event(event)]
    # What follows needs every field to be there.
    return found + (broken or [*_names(events), *_order(events), *_nesting(events)])


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _event(event: Event) -> Iterator[str]:
    kind = event.get("ph")
    if kind not in _FIELDS:
        yield f"unknown kind of event {kind!r}"
        return
    fields = {"pid": (int,), "tid": (int,), **_FIELDS[kind]}
    wrong = [field for field, types in fields.items() if not _is(event.get(field), types)]
    if wrong:
        yield f"{', '.join(wrong)} missing or of another type in {event}"
        return
    for field in ("ts", "dur"):
        if event.get(field, 0) < 0:
            yield f"{field} is negative in {event}"
    if kind == "M":
        yield from _metadata(event)
    if kind == "C":
        yield from _counter(event)


def _counter(event: Event) -> Iterator[str]:
    values = event["args"].values()
    if not values or not all(_is(value, (int, float)) for value in values):
        yield f"a counter counts numbers: {event}"
    for series in event["args"]:
        # Perfetto shows a counter as its name and the series behind it.
        if set(series.split()) & set(event["name"].replace(",", "").split()):
            yield f"read as '{event['name']} {series}', a word of it is said twice"


def _is(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


def _metadata(event: Event) -> Iterator[str]:
    field, kind = _METADATA.get(event["name"], ("", str))
    if not field:
        yield f"unknown metadata {event['name']}"
    elif not _is(event["args"].get(field), (kind,)):
        yield f"{event['name']} has no {field}"


def _names(events: list[Event]) -> Iterator[str]:
    """Every process and track is named exactly once, before it is used."""
    named: set[tuple[str, int, int | None]] = set()
    for event in events:
        pid, tid = event["pid"], event["tid"]
        if event["ph"] == "M" and event["name"].endswith("_name"):
            key = (event["name"], pid, tid if event["name"] == "thread_name" else None)
            if key in named:
                yield f"named twice: {key}"
            named.add(key)
        elif event["ph"] != "M":
            if ("process_name", pid, None) not in named:
                yield f"process {pid} has no name before it is used"
            if event["ph"] == "X" and ("thread_name", pid, tid) not in named:
                yield f"track {pid}/{tid} has no name before it is used"


def _order(events: list[Event]) -> Iterator[str]:
    """Times of a process do not go back: a reader that streams need not sort."""
    last: dict[int, float] = {}
    for event in events:
        if event["ph"] != "M":
            if event["ts"] < last.get(event["pid"], 0):
                yield f"goes back in time: {event}"
            last[event["pid"]] = event["ts"]


def _nesting(events: list[Event]) -> Iterator[str]:
    """Compare every slice of a track with every other one: apart, or one inside the other."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track, slices in tracks.items():
        for place, (start, end) in enumerate(slices):
            for other_start, other_end in slices[place + 1 :]:
                if start < other_start < end < other_end or other_start < start < other_end < end:
                    pair = f"{start}-{end}, {other_start}-{other_end}"
                    yield f"slices of track {track} overlap: {pair}"
