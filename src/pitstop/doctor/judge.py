"""From a source to its verdict: the way that the doctor's commands, pages and the live view share.

A source is read, its record examined, and several are compared with the first. What shows the
result receives `JudgedRuns` and judges nothing itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pitstop.doctor.compare import compare
from pitstop.doctor.examine import examine_ranks, ranks_together
from pitstop.doctor.facts import Facts
from pitstop.doctor.logs.compare import compare_logs
from pitstop.doctor.logs.examine import examine_log
from pitstop.doctor.ranks.together import Ranks, read_ranks
from pitstop.errors import RecordError
from pitstop.records.comparison import Comparison
from pitstop.records.host.nodes import is_one_run
from pitstop.records.logs.comparison import LogPair
from pitstop.records.logs.summary import LogExamination
from pitstop.records.run import RankRecord, RunRecord
from pitstop.records.store import is_run
from pitstop.records.summary import RunSummary, summarise
from pitstop.records.verdict import Verdict


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgedRun:
    """A record with its verdict."""

    record: RunRecord
    verdict: Verdict
    log: LogExamination | None
    """None for a measured run."""
    ranks: Ranks | None
    """All ranks side by side; None for a log."""

    @property
    def facts(self) -> Facts | None:
        """Of the rank that the verdict rests on; None for a log."""
        return None if self.ranks is None else self.ranks.of(self.verdict.rank)

    @property
    def summary(self) -> RunSummary:
        """Of the rank that the verdict rests on."""
        return summarise(next(rank for rank in self.record.ranks if rank.rank == self.verdict.rank))

    @property
    def rank(self) -> RankRecord:
        """The rank that the verdict rests on, with what was read of its host."""
        if self.facts is not None:
            return self.facts.record
        return next(rank for rank in self.record.ranks if rank.windows is not None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedPair:
    """One run compared with the first."""

    result: str
    """Such as ``faster``, or ``not comparable``."""
    message: str
    comparison: Comparison | None = None
    log: LogPair | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedRuns:
    """One run or several; all but the first are compared with the first."""

    runs: tuple[JudgedRun, ...]
    pairs: tuple[JudgedPair, ...]
    """In the order of the runs, without the first."""


def judge(
    sources: Sequence[str | Path],
    *,
    log_format: str | None = None,
    batch_sizes: Sequence[int] = (),
    world_sizes: Sequence[int] = (),
) -> JudgedRuns:
    """Read measured runs or logs of other tools and judge them.

    Args:
        sources: Folders or files of measured runs, or logs of other tools; folders of one run on
            several hosts are that run.
        log_format: Name of the logs' format, where it is not recognised.
        batch_sizes: Samples of one optimizer step on one rank: one for all logs, or one a source.
        world_sizes: Ranks of each run, given the same way.

    Raises:
        RecordError: There is no source, or one cannot be read.
    """
    if not sources:
        raise RecordError("name at least one run or log to report on")
    if log_format is None and not batch_sizes and not world_sizes and all(map(_is_run, sources)):
        if is_one_run([Path(source) for source in sources]):
            return judge_records([read_ranks(sources[0], *map(Path, sources[1:]))])
        return judge_records([read_ranks(source) for source in sources])
    # Readers of twenty formats: a measured run needs none of them.
    from pitstop.logs.read import read_logs

    return judge_records(
        read_logs(sources, format=log_format, batch_sizes=batch_sizes, world_sizes=world_sizes)
    )


def _is_run(source: str | Path) -> bool:
    try:
        return is_run(Path(source))
    except OSError:
        return False  # whoever reads logs says what is wrong with it


def judge_records(records: Sequence[RunRecord]) -> JudgedRuns:
    """Judge records, and compare each with the first."""
    runs = tuple(map(judge_record, records))
    return JudgedRuns(runs=runs, pairs=compare_judged(runs))


def judge_run(source: str | Path, *more: Path) -> JudgedRun:
    """Read one measured run and judge it.

    Args:
        source: Its folder, or the file of a rank.
        more: Its folders on other hosts.

    Raises:
        RecordError: It cannot be read.
    """
    return judge_record(read_ranks(source, *more))


def compare_runs(first: str | Path, other: str | Path) -> Comparison:
    """Read two measured runs and compare them, without judging either.

    Raises:
        RecordError: One cannot be read, or they did not do the same work.
    """
    return compare(read_ranks(first), read_ranks(other))


def verdict_of(record: RunRecord) -> Verdict:
    """Judge a record, however much of it is written yet."""
    return judge_record(record).verdict


def judge_record(record: RunRecord) -> JudgedRun:
    """Judge one record, of a measured run or of a log."""
    if any(rank.windows is not None for rank in record.ranks):
        log = examine_log(record)
        return JudgedRun(record=record, verdict=log.verdict, log=log, ranks=None)
    ranks = ranks_together(record)
    return JudgedRun(record=record, verdict=examine_ranks(record, ranks), log=None, ranks=ranks)


def compare_judged(runs: Sequence[JudgedRun]) -> tuple[JudgedPair, ...]:
    """Compare each run with the first, as far as both are of one kind."""
    if len(runs) < 2:
        return ()
    if all(run.log is not None for run in runs):
        found = compare_logs([run.record for run in runs])
        return tuple(
            JudgedPair(result=pair.result, message=pair.message, log=pair) for pair in found.pairs
        )
    return tuple(_pair(runs[0], run) for run in runs[1:])


def _pair(first: JudgedRun, other: JudgedRun) -> JudgedPair:
    if first.log is not None or other.log is not None:
        why = "a log of another tool and a measured run are not compared: they time other things"
        return JudgedPair(result="not comparable", message=why)
    try:
        found = compare(first.record, other.record)
    except RecordError as error:
        return JudgedPair(result="not comparable", message=str(error))
    return JudgedPair(result=found.change, message=found.message, comparison=found)
