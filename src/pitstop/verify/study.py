"""Trials with a journal on disk: killed at any moment and started again, none is repeated.

STUDY/
  3f2a91c04b7e5d10/         one trial, named by all that decides it
    output.txt              what its process printed
    gradients-0.npz ...     where asked for
    result.json             written last: without it the trial is run again
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pitstop.errors import PitstopError, RecordError
from pitstop.records.store import from_json, write_json
from pitstop.records.verify.trial import TrialEnd, TrialResult
from pitstop.verify.runner import Program, Runner

RESULT: Final = "result.json"
_NAME_DIGITS: Final = 16


class RunnableTrial(Protocol):
    """Something that can be run once and read."""

    @property
    def label(self) -> str:
        """Which side and seed, for people."""
        ...

    def identity(self) -> dict[str, object]:
        """Give all that decides the result, as plain values."""
        ...

    def program(self, folder: Path) -> Program:
        """Write what the program needs into its folder, and say what to run."""
        ...

    def read(self, folder: Path, ended: TrialEnd) -> TrialResult:
        """Read what the program left."""
        ...


@dataclass(frozen=True, slots=True)
class Study:
    """Results of trials, from the journal where they are in it."""

    folder: Path
    runner: Runner
    say: Callable[[str], object]
    """Takes a line for each trial."""

    def result(self, trial: RunnableTrial) -> TrialResult:
        """Run a trial, unless it was run before."""
        folder = self.folder_of(trial)
        known = _known(folder / RESULT)
        if known is not None:
            self.say(f"{trial.label}: {known.status} (from {self.folder})")
            return known
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise PitstopError(f"cannot write to {folder}: {error.strerror}") from error
        ended = self.runner.run(trial.program(folder))
        result = trial.read(folder, ended)
        write_json(result, folder / RESULT)
        reason = f": {result.reason}" if result.reason else ""
        self.say(f"{trial.label}: {result.status} in {result.wall_s:.1f} s{reason}")
        return result

    def folder_of(self, trial: RunnableTrial) -> Path:
        """Where a trial's files are."""
        text = json.dumps(trial.identity(), sort_keys=True)
        return self.folder / hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS]


def _known(path: Path) -> TrialResult | None:
    try:
        return from_json(path.read_text(encoding="utf-8"), TrialResult)
    except (OSError, RecordError):  # not there, or of another version: it is run again
        return None
