"""`pitstop.attach`: a measurement from one's own code, with its verdict at hand.

    with pitstop.attach("runs/first") as attached:
        ...
    attached.verdict()

Measuring lies below judging in the layers, so what joins the two for a notebook stands above both.
What judges and shows is imported when it is asked for: a training needs none of it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pitstop.measure.script.attach import Attached, begin

if TYPE_CHECKING:
    from pitstop.records.verdict import Verdict


@dataclass(frozen=True, slots=True, repr=False)
class ShownVerdict:
    """A verdict that shows itself, in a terminal and in a notebook."""

    verdict: "Verdict"

    def __repr__(self) -> str:
        from pitstop.report.export.notebook import verdict_text

        return verdict_text(self.verdict)

    def _repr_html_(self) -> str:
        from pitstop.report.export.notebook import verdict_html

        return verdict_html(self.verdict)


class JudgedAttached(Attached):
    """A measurement under way that can be judged, while it goes on or afterwards."""

    def verdict(self) -> ShownVerdict:
        """Judge what is in the record by now; it is whole once the measurement is closed.

        Raises:
            RecordError: The record cannot be read.
        """
        from pitstop.doctor.judge import judge_run
        from pitstop.records.store import is_run
        from pitstop.records.verdict import Verdict

        if self.folder.is_dir() and is_run(self.folder):
            return ShownVerdict(judge_run(self.folder).verdict)
        message = f"no step was recorded in {self.folder}"
        return ShownVerdict(Verdict(outcome="not enough evidence", message=message, findings=()))

    def _repr_html_(self) -> str:
        from pitstop.report.export.notebook import verdict_html

        return verdict_html(self.verdict().verdict)


def attach(folder: str | Path) -> JudgedAttached:
    """Begin to measure this process; its record goes into a folder.

    A folder that holds a record already gets a numbered neighbour: ``runs/first-2``. A process that
    is measured already, by ``pitstop doctor -- CMD``, stays so: then this changes nothing, and the
    record is where the doctor puts it.

    It never raises, for it stands in somebody's training. Where nothing can be measured (a folder
    that cannot be written to, torch not imported yet), a line on stderr says so and the training
    goes on unmeasured.
    """
    return JudgedAttached(*begin(folder))
