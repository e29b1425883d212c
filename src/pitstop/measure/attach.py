"""Measures a training loop from inside its own code.

    with pitstop.attach("runs/first"):
        for batch in loader:
            ...
            with pitstop.span("vgg loss"):
                ...

Steps, parts and everything else are found as under ``pitstop doctor -- CMD``; the record lies in
the folder afterwards, for ``pitstop doctor runs/first``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from pitstop.errors import PitstopError
from pitstop.measure.record_folder import fresh_folder
from pitstop_probe.attach import attach as attach_probe
from pitstop_probe.attach import current
from pitstop_probe.course import Measurement


class Attached:
    """A measurement under way; close it, or use it in a ``with`` statement."""

    def __init__(self, measurement: Measurement, folder: Path, *, is_own: bool) -> None:
        self._measurement = measurement
        self._is_own = is_own
        self.folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or not self._is_own:
            self.close()
        else:
            self._measurement.close("failed", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Write what remains of the record and take every wrapper off. Harmless when repeated."""
        if self._is_own:
            self._measurement.close()


def attach(folder: str | Path) -> Attached:
    """Begin to measure this process; its record goes into a folder.

    A process that is measured already, by ``pitstop doctor -- CMD``, stays so: then this changes
    nothing, and the record is where the doctor puts it.

    Raises:
        PitstopError: torch is not imported yet, or the folder holds a record already or cannot be
            written to.
    """
    is_own = current() is None
    place = free_folder(folder)
    try:
        return Attached(attach_probe(str(place)), place, is_own=is_own)
    except RuntimeError as error:
        raise PitstopError(str(error)) from error


def free_folder(folder: str | Path) -> Path:
    """Make the folder for this process's record; one that is measured already needs none.

    Raises:
        PitstopError: It holds a record already, or cannot be written to.
    """
    if current() is not None:
        return Path(folder)
    # Other files of a run may be there: ranks share the folder.
    return fresh_folder(folder, of_a_run=("rank-*.jsonl",))


@contextmanager
def span(name: str) -> Iterator[None]:
    """Name a part of the step; where nothing measures, it does nothing.

    The part is taken out of whatever holds it, so that parts never overlap.
    """
    measurement = current()
    entered = measurement is not None and measurement.watch.enter(name)
    try:
        yield
    finally:
        if entered and measurement is not None:
            measurement.watch.leave(name)
