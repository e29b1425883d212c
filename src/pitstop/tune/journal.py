"""Trials on disk: a tuner that was killed goes on where it was, and repeats none that had ended."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pitstop.errors import PitstopError, RecordError
from pitstop.records.store import from_json, to_json
from pitstop.records.tuning.study import OTHER_SEEDS, Trial
from pitstop.tune.trial import Trials

_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyHead:
    """What all trials of a journal have in common; its first line."""

    config: str
    """The whole configuration, as text."""
    steps: int
    """Of a trial."""
    enough_s: float | None = None
    """Of steps, with which a trial ends before it has all of them."""


class TrialJournal:
    """One line a trial, written when it has ended."""

    def __init__(self, path: Path, head: StudyHead) -> None:
        """Read what is there, or begin it.

        Raises:
            PitstopError: It is of another configuration, or cannot be written.
        """
        self._path = path
        self._unused: dict[tuple[str, ...], list[Trial]] = {}
        try:
            text = path.read_text(encoding="utf-8")[:_MOST_BYTES] if path.exists() else ""
            if not text:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._append(head)
                return
        except (OSError, UnicodeDecodeError) as error:
            raise PitstopError(f"cannot use {path} as a journal: {error}") from error
        # What follows the last line break was cut off by a kill.
        lines = text[: text.rfind("\n") + 1].splitlines()
        self._require_same(lines, head)
        for line in lines[1:]:
            trial = from_json(line, Trial)
            # What the untouched one lacked may be there now: a file, memory, time.
            is_untouched = trial.overrides in ((), OTHER_SEEDS)
            if trial.end in ("measured", "lost") or not is_untouched:
                self._unused.setdefault(trial.overrides, []).append(trial)
        if not text.endswith("\n"):
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def take(self, overrides: tuple[str, ...]) -> Trial | None:
        """Give the next trial of these settings that was not taken yet."""
        waiting = self._unused.get(overrides)
        return waiting.pop(0) if waiting else None

    def has(self, overrides: tuple[str, ...]) -> bool:
        """Whether there is a trial of these settings that was not taken yet."""
        return bool(self._unused.get(overrides))

    def write(self, trial: Trial) -> None:
        """Keep a trial for good."""
        self._append(trial)

    def _require_same(self, lines: Sequence[str], head: StudyHead) -> None:
        try:
            if from_json(lines[0], StudyHead) == head:
                return
        except (RecordError, IndexError) as error:
            raise PitstopError(f"{self._path} is no journal of trials") from error
        raise PitstopError(
            f"{self._path} holds trials of another configuration, command or script, or of "
            "other settings; name another folder with --work-dir, or remove it"
        )

    def _append(self, record: object) -> None:
        line = " ".join(to_json(record).split("\n"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())


@dataclass(slots=True, kw_only=True)
class JournaledTrials:
    """Trials that are looked up before they are run."""

    journal: TrialJournal
    trials: Trials
    repeated: int = 0
    """Answered from the journal."""

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try settings, or say what came of them when they were tried."""
        known = self.journal.take(tuple(overrides))
        if known is not None:
            self.repeated += 1
            return known
        trial = self.trials.run(overrides)
        self.journal.write(trial)
        return trial
