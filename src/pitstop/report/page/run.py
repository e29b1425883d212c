"""One run as the sections of a page read it: its record, judged, and its readings typed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.judge import JudgedRun
from pitstop.doctor.ranks.together import Ranks
from pitstop.errors import RecordError
from pitstop.records.host.memory import HostLoad
from pitstop.records.logs.summary import LogExamination
from pitstop.records.run import Array, RankRecord, RunRecord
from pitstop.records.store import decode
from pitstop.records.verdict import Verdict
from pitstop.report.page.charts import Segment
from pitstop.report.page.palette import HATCHED, colours

ReadingT = TypeVar("ReadingT")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunView:
    """What a page knows of one run."""

    record: RunRecord
    name: str
    """Short enough for a heading."""
    verdict: Verdict
    rank: RankRecord
    """The one that the verdict rests on, with what was read of its host."""
    facts: Facts | None
    """Of that rank after warm-up; None for a log."""
    ranks: Ranks | None
    """All of them side by side; None for a log."""
    log: LogExamination | None
    """None for a measured run."""
    colours: Mapping[str, str]
    """By part, the same in every drawing."""
    language: str = "en"
    """Of explanations that travel in the page."""

    @property
    def folder(self) -> Path | None:
        """Where the run lies, if it is a folder."""
        path = Path(self.record.source)
        return path if path.is_dir() else None

    @property
    def total_name(self) -> str:
        """Ranks in all, as the record claims; for text such as "rank 1 of 4"."""
        attempts = self.rank.attempts
        world = attempts[-1].world_size if attempts else 1
        return "" if world == 1 else f"rank {self.rank.rank} of {world}"

    def readings(self, kind: str, record_type: type[ReadingT]) -> tuple[ReadingT, ...]:
        """Every sound reading of a kind, in the order in which it was written."""
        return tuple(_sound(self.rank, kind, record_type))

    def segment(self, part: str, share: float, text: str) -> Segment:
        """A part as a piece of a bar, in its colour."""
        return Segment(name=part, share=share, colour=self.colours.get(part, HATCHED), text=text)

    def loads_in_steps(self) -> tuple[HostLoad, ...]:
        """Loads read while the steps after warm-up ran: start-up would hide how busy these were."""
        facts = self.facts
        table = None if facts is None else facts.record.steps
        if facts is None or table is None or not len(table):
            return ()
        ends_us = float((table.start_us + table.wall_us).max())
        return facts.readings.between(facts.first_us, ends_us, HostLoad)


def _sound(rank: RankRecord, kind: str, record_type: type[ReadingT]) -> Iterable[ReadingT]:
    for reading in rank.readings:
        if reading.kind == kind:
            try:
                yield decode(reading, record_type)
            except RecordError:
                continue  # counted in the verdict's notes


def view_of(run: JudgedRun, language: str = "en") -> RunView:
    """Lay a judged run out for the sections."""
    facts = run.facts
    parts = list(run.verdict.shares)
    if facts is not None:
        parts = [*facts.parts_us, *facts.summary.events, *(path[0] for path in facts.record.paths)]
        parts += ["data", "forward"]
    parts += ["start-up", "steps"]
    return RunView(
        record=run.record,
        name=_name(run.record),
        verdict=run.verdict,
        rank=run.rank,
        facts=facts,
        ranks=run.ranks,
        log=run.log,
        colours=colours([*parts, "data", "unaccounted"]),
        language=language,
    )


def _name(record: RunRecord) -> str:
    """The name that the run gave itself, or the last part of where it was read from."""
    about = record.first.attempts[-1].about if record.first.attempts else {}
    given = about.get("name")
    place = Path(record.source.split(", ", maxsplit=1)[0])
    folder = place.name or str(place)
    if isinstance(given, str) and given not in ("", "script", folder):
        return f"{given} ({folder})"
    return folder


def quartiles(values: Array | Sequence[float]) -> tuple[float, float, float] | None:
    """First quartile, median and third quartile of what is finite; None where nothing is."""
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    if not len(known):
        return None
    low, middle, high = np.percentile(known, (25, 50, 75))
    return float(low), float(middle), float(high)
