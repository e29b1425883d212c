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
from itertools import count
from pathlib import Path
from typing import Self

from pitstop.measure.script.record_folder import fresh_folder, record_in
from pitstop_probe.attach import attach as attach_probe
from pitstop_probe.attach import current
from pitstop_probe.measurement import Measurement
from pitstop_probe.stderr import say
from pitstop_probe.writer import describe_process


class Attached:
    """A measurement under way; close it, or use it in a ``with`` statement.

    Attributes:
        folder: Where the record goes.
    """

    def __init__(self, measurement: Measurement | None, folder: Path) -> None:
        self._measurement = measurement
        self.folder = folder

    def __repr__(self) -> str:
        state = "not measured here" if self._measurement is None else str(self.folder)
        return f"Attached({state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or self._measurement is None:
            self.close()
        else:
            self._measurement.close("failed", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Write what remains of the record and take every wrapper off. Harmless when repeated."""
        if self._measurement is not None:
            self._measurement.close()


def attach(folder: str | Path) -> Attached:
    """Begin to measure this process: `pitstop.attach` without what judges the record."""
    return Attached(*begin(folder))


def begin(folder: str | Path) -> tuple[Measurement | None, Path]:
    """Begin to measure this process; give the measurement and where its record goes.

    It never raises: where nothing can be measured, a line on stderr says so, and there is none.
    """
    if current() is not None:
        return None, Path(folder)
    try:
        place = _free_folder(folder)
        return attach_probe(str(place)), place
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end a training
        say(f"this training is not measured: {error}")
        return None, Path(folder)


def _free_folder(folder: str | Path) -> Path:
    """Make the folder for this process's record, or the first of its neighbours that has none.

    Raises:
        PitstopError: It cannot be written to.
    """
    # Other ranks share the folder, and other files of a run may be there.
    own = (f"rank-{describe_process()['rank']}.jsonl",)
    place = Path(folder)
    if folder == "" or record_in(place, own) is None:
        return fresh_folder(folder, of_a_run=own)
    neighbours = (place.with_name(f"{place.name}-{number}") for number in count(2))
    free = next(other for other in neighbours if record_in(other, own) is None)
    say(f"{place} holds the record of another run; this one goes to {free}")
    return fresh_folder(free, of_a_run=own)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Name a part of the step; where nothing measures, it does nothing.

    The part is taken out of whatever holds it, so that parts never overlap.
    """
    measurement = current()
    entered = measurement is not None and measurement.tracker.enter(name)
    try:
        yield
    finally:
        if entered and measurement is not None:
            measurement.tracker.leave(name)
