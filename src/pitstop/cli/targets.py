"""The closing summary of ``pitstop train``: which targets the run reached."""

from typing import TYPE_CHECKING

from rich.console import Console

from pitstop.config.sections import TargetsSection
from pitstop.doctor.judge import judge_run
from pitstop.doctor.targets import judge_targets
from pitstop.report.progress import target_lines
from pitstop.train.observers import Observer, RunStart, Status

if TYPE_CHECKING:
    from pathlib import Path


class ClosingTargets(Observer):
    """Judges the record once it is closed. A run that failed has other worries."""

    def __init__(self, targets: TargetsSection, console: Console) -> None:
        self._asked = targets.model_dump(exclude_none=True)
        self._console = console
        self._folder: Path | None = None

    def started(self, start: RunStart) -> None:
        """Remember where the record is."""
        self._folder = start.folder

    def ended(self, step: int, status: Status, reason: str) -> None:
        """Print a line for each target."""
        if not self._asked or self._folder is None or status == "failed":
            return
        facts = judge_run(self._folder).facts
        if facts is not None:
            for line in target_lines(judge_targets(facts, self._asked)):
                self._console.print(line, soft_wrap=True)
