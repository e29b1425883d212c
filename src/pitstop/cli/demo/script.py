"""The demo's script: written as people write theirs, measured, fixed, measured again in turns.

DEMO/script
├── train.py                the slow script
├── train_fixed.py          with what the verdict blames rewritten
├── fix.diff                from one to the other
├── pictures                generated, to train on
└── before-1, after-1 ...   records of both, in turns; what they printed in before-1.txt ...
"""

import difflib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.cli.demo.folder import SCRIPT
from pitstop.config.shipped import shipped_folder
from pitstop.doctor.judge import verdict_of
from pitstop.doctor.pairs import PairedRuns, judge_pairs
from pitstop.errors import DataError, os_errors_as
from pitstop.measure.script.launch import run_script
from pitstop.records.store import read_run
from pitstop.records.verdict import Verdict

DIFF: Final = "fix.diff"

_PICTURES: Final = "pictures"
_SLOW: Final = "train.py"
_FIXED: Final = "train_fixed.py"
_CLASSES: Final = 4
_PICTURES_EACH: Final = 16
_SIZE: Final = (384, 512)
# One after another decides nothing on a host that others use as well; three have a middle.
_PAIRS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFolder:
    """The script beside its fix and its data."""

    folder: Path
    pictures: int
    diff: str
    """Unified, from the slow script to the fixed one."""
    steps: int

    def command(self, *, fixed: bool) -> tuple[str, ...]:
        """What somebody types who is in the folder of the demo."""
        name = _FIXED if fixed else _SLOW
        return (
            sys.executable,
            str(self.folder / name),
            str(self.folder / _PICTURES),
            str(self.steps),
        )

    @property
    def shown(self) -> str:
        """The command that is diagnosed, as one types it."""
        return f"python {self.folder / _SLOW} {self.folder / _PICTURES} {self.steps}"


def prepare_script(demo: Path, *, steps: int) -> ScriptFolder:
    """Lay out the scripts, their difference and the pictures.

    Raises:
        DataError: The examples are not there, or the folder cannot be written to.
    """
    examples = shipped_folder("examples", in_checkout="examples")
    if examples is None:
        raise DataError("the package came without its examples; install it again")
    folder = demo / SCRIPT
    with os_errors_as(DataError, f"cannot write to {folder}"):
        (folder / _PICTURES).mkdir(parents=True, exist_ok=True)
        for source, name in (("slow", _SLOW), ("fixed", _FIXED)):
            shutil.copyfile(examples / source / "train.py", folder / name)
        diff = _difference(folder)
        (folder / DIFF).write_text(diff, encoding="utf-8")
        count = _make_pictures(folder / _PICTURES)
    return ScriptFolder(folder=folder, pictures=count, diff=diff, steps=steps)


def _difference(folder: Path) -> str:
    before, after = (
        (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
        for name in (_SLOW, _FIXED)
    )
    return "".join(difflib.unified_diff(before, after, _SLOW, _FIXED, n=0))


def _make_pictures(folder: Path) -> int:
    """Draw waves in four directions, with noise, and save them as a camera would."""
    from PIL import Image

    draws = np.random.default_rng(0)
    y, x = np.mgrid[: _SIZE[0], : _SIZE[1]]
    for kind in range(_CLASSES):
        angle = np.pi * kind / _CLASSES
        along = x * np.cos(angle) + y * np.sin(angle)
        for number in range(_PICTURES_EACH):
            phase = along * 2 * np.pi / draws.uniform(48, 96) + draws.uniform(0, 6)
            noise = draws.normal(0, 20, (*_SIZE, 3))
            levels = (np.sin(phase)[..., None] * 60 + 128 + noise).clip(0, 255)
            name = f"{kind}-{number:02d}.jpg"
            Image.fromarray(levels.astype(np.uint8)).save(folder / name, quality=90)
    return _CLASSES * _PICTURES_EACH


def diagnose(script: ScriptFolder) -> Verdict:
    """Run the slow script under the doctor, whole; its record is the first of the pairs.

    Raises:
        DataError: The script failed.
        KeyboardInterrupt: It was interrupted.
    """
    _measure(script, "before-1", fixed=False)
    return verdict_of(read_run(script.folder / "before-1"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScriptTurns:
    """Both scripts, measured in turns."""

    pairs: PairedRuns
    printed_the_same: bool
    """Whether every run printed the same losses, to the last digit."""


def measure_pairs(script: ScriptFolder) -> ScriptTurns:
    """Run both scripts in turns; whoever goes first in one pair goes last in the next.

    Raises:
        DataError: A script failed.
        KeyboardInterrupt: One was interrupted.
    """
    places = range(1, _PAIRS + 1)
    for place in places:
        for fixed in (False, True) if place % 2 else (True, False):
            name = f"{'after' if fixed else 'before'}-{place}"
            if not (script.folder / name).is_dir():
                _measure(script, name, fixed=fixed)
    pairs = [(script.folder / f"before-{n}", script.folder / f"after-{n}") for n in places]
    printed = {_printed(folder).read_text() for pair in pairs for folder in pair}
    return ScriptTurns(
        pairs=judge_pairs([(read_run(before), read_run(after)) for before, after in pairs]),
        printed_the_same=len(printed) == 1,
    )


def _measure(script: ScriptFolder, name: str, *, fixed: bool) -> None:
    command, record = script.command(fixed=fixed), script.folder / name
    with _printed(record).open("w") as printed:
        ended = run_script(command, record, steps=None, stdout=printed.fileno())
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.exit_code != 0:
        raise DataError(f"{' '.join(command)} failed with {ended.exit_code}; run it to see why")


def _printed(record: Path) -> Path:
    return record.with_suffix(".txt")
