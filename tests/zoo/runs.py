"""Runs of the zoo's scripts: bare, under the doctor, under the stopwatch; each is kept as it ends.

A journal has a line for each run. Where the whole takes longer than there is time, or is cut off,
the next call goes on where the journal ends.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pitstop.records.run import RankRecord
from pitstop.records.store import read_run
from tests.zoo.ordinary import ordinary_shares
from tests.zoo.table import HERE, STANDINS, Device, Row

ROOT = Path(__file__).parents[2]

Kind = Literal["bare", "bare again", "whole", "detach", "default", "stopwatch"]

DOCTOR_OPTIONS: Mapping[Kind, tuple[str, ...]] = {
    "whole": ("--steps", "1000000"),
    "detach": ("--detach",),
    "default": (),
}
UNTIMED: tuple[Kind, ...] = ("bare", "bare again", "detach", "default")
"""Runs whose times do not matter."""


class NoTimeLeftError(Exception):
    """A run was not begun, or not finished, for lack of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a script."""

    kind: Kind
    code: int
    stdout: str
    stderr: str
    wall_s: float
    verdict: dict[str, Any] = field(default_factory=dict)
    """What the doctor said; empty where it was not asked, or said nothing."""
    steps: int | None = None
    """Steps that the doctor found."""
    ordinary: dict[str, float] = field(default_factory=dict)
    """Parts of ordinary steps, by the doctor's record."""
    timed: dict[str, Any] = field(default_factory=dict)
    """What the stopwatch saw."""
    others_wait: bool = False
    """Whether others waited for the GPU meanwhile, so that SHARE001 tells of them."""

    @property
    def first(self) -> str:
        """The first finding that is more than information, or the outcome."""
        told = [f["code"] for f in self.verdict.get("findings", []) if f["severity"] != "info"]
        codes = [code for code in told if code != "SHARE001" or not self.others_wait]
        if codes or not told:
            return codes[0] if codes else self.verdict.get("outcome", "nothing said")
        return "healthy"


class Journal:
    """Runs that have ended, by script, device and kind; in a file, too, if one is named."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str, str], Run] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            found = json.loads(line)
            key = (found["script"], found["device"], found["run"]["kind"])
            self._runs[key] = Run(**found["run"])
        except (ValueError, KeyError, TypeError):  # the line that was being written when it was cut
            return

    def has(self, row: Row, device: Device, kind: Kind) -> bool:
        """Whether such a run has ended."""
        return (row.name, device, kind) in self._runs

    def once(self, row: Row, device: Device, kind: Kind, run: Callable[[], Run]) -> Run:
        """Give a run that has ended, or make it."""
        key = (row.name, device, kind)
        if key not in self._runs:
            made = run()
            with self._lock:
                self._runs[key] = made
                self._write({"script": row.name, "device": device, "run": asdict(made)})
        return self._runs[key]

    def _write(self, entry: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                # First: the line before may have been cut off.
                file.write("\n" + json.dumps(entry))


class Zoo:
    """Runs rows on one device, each kind of run once."""

    def __init__(
        self,
        *,
        device: Device,
        public: Path | None,
        python: str,
        journal: Journal | None = None,
        end_s: float = float("inf"),
        patience: float = 1.0,
    ) -> None:
        """Say where and how.

        Args:
            device: Of the scripts.
            public: Folder of the checkouts.
            python: Interpreter of the scripts.
            journal: Runs that need not be made again.
            end_s: On the monotonic clock; no run goes on after it.
            patience: How many times its row's limit a run may take.
        """
        self.device: Device = device
        self.public = public
        self.python = python
        self.journal = journal or Journal()
        self.end_s = end_s
        self.patience = patience
        self.turn: Path | None = None
        """A lock; with it, scripts have the GPU one after the other."""

    def run(self, row: Row, kind: Kind) -> Run:
        """Run a row in one way, unless that was done.

        Raises:
            NoTimeLeftError: It did not end in time.
        """
        return self.journal.once(row, self.device, kind, lambda: self._way(row, kind))

    def run_together(self, rows: Sequence[Row], kinds: Sequence[Kind], *, at_a_time: int) -> None:
        """Make runs whose times do not matter; each kind has checkouts of its own to write into."""
        todo: list[tuple[Row, Kind]] = [
            (row, kind)
            for row in rows
            for kind in kinds
            if not self.journal.has(row, self.device, kind)
        ]
        with tempfile.TemporaryDirectory(prefix="zoo-") as name:
            wanted = [kind for kind in kinds if any(kind == each for _, each in todo)]
            places = {kind: self._moved(Path(name) / kind) for kind in wanted}
            with ThreadPoolExecutor(at_a_time) as pool:
                for row, kind in todo:
                    pool.submit(places[kind].run, row, kind)

    def _moved(self, public: Path) -> "Zoo":
        """The same with a copy of the checkouts; our own scripts write nothing beside them."""
        if self.public is None:
            return self
        shutil.copytree(self.public, public)
        return Zoo(
            device=self.device,
            public=public,
            python=self.python,
            journal=self.journal,
            end_s=self.end_s,
            patience=self.patience,
        )

    def _way(self, row: Row, kind: Kind) -> Run:
        with tempfile.TemporaryDirectory(prefix="zoo-") as name:
            if kind == "stopwatch":
                return self._timed(row, Path(name))
            if kind in DOCTOR_OPTIONS:
                return self._watched(row, kind, Path(name))
            return self._done(row, kind, [self.python, *row.words(self.device)])

    def _watched(self, row: Row, kind: Kind, folder: Path) -> Run:
        out, record = folder / "verdict.json", folder / "record"
        doctor = (sys.executable, "-m", "pitstop", "doctor", *DOCTOR_OPTIONS[kind])
        where = ("--json", str(out), "--record", str(record), "--")
        command = [*doctor, *where, self.python, *row.words(self.device)]
        return self._done(
            row,
            kind,
            command,
            lambda: {
                "verdict": _json(out),
                **_of_record(record),
                "others_wait": self.turn is not None,
            },
        )

    def _timed(self, row: Row, folder: Path) -> Run:
        """Time the parts of the script's steps from outside."""
        out = folder / "stopwatch.json"
        timer = (str(HERE / "stopwatch.py"), str(out), json.dumps(dict(row.timed)))
        words = row.words(self.device)[len(row.launcher) :]
        command = [self.python, *row.launcher, *timer, *words]
        return self._done(row, "stopwatch", command, lambda: {"timed": _json(out)})

    def _done(
        self,
        row: Row,
        kind: Kind,
        command: Sequence[str],
        found: Callable[[], dict[str, Any]] = dict,
    ) -> Run:
        """Run a command; add what it left behind."""
        start_s = time.monotonic()
        longest_s = row.limit_s * self.patience
        limit_s = min(longest_s, self.end_s - start_s)
        if limit_s <= 0:
            raise NoTimeLeftError(f"{row.name}, {kind}: not begun")
        try:
            done = subprocess.run(
                [
                    "env",
                    *(f"{name}={value}" for name, value in self.environment(row).items()),
                    *command,
                ],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=limit_s,
                cwd=row.working_folder(self.public),
            )
            code, stdout, stderr = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            if limit_s < longest_s:
                raise NoTimeLeftError(f"{row.name}, {kind}: not ended") from error
            code, stdout, stderr = 124, _text(error.stdout), _text(error.stderr)
        wall_s = time.monotonic() - start_s
        return Run(kind=kind, code=code, stdout=stdout, stderr=stderr, wall_s=wall_s, **found())

    def environment(self, row: Row) -> dict[str, str]:
        """Variables of a row's process."""
        folder = row.working_folder(self.public)
        paths = [str(folder / path) for path in row.python_path]
        if row.repository and row.standins:  # what our own scripts import is installed
            paths.append(str(STANDINS))
        if self.turn is not None:
            paths.append(str(HERE / "turns"))
        return {
            "PATH": f"{STANDINS / 'bin'}:{os.environ['PATH']}",  # noqa: TID251 - handed on
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "ZOO_SEED": "0",
            **row.env,
            **(row.cuda_env if self.device == "cuda" else {}),
            **({} if self.turn is None else {"ZOO_TURN": str(self.turn)}),
            "PYTHONPATH": ":".join([*paths, str(ROOT / "src"), *_outer_path()]),
        }


def _outer_path() -> list[str]:
    """Folders that the runner itself was told to import from."""
    outer = os.environ.get("PYTHONPATH", "")  # noqa: TID251 - it is handed on, not read as a setting
    return [outer] if outer else []


def _text(part: bytes | str | None) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part or ""


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _of_record(record: Path) -> dict[str, Any]:
    try:
        rank = read_run(record).first
    except Exception:  # noqa: BLE001 - whatever is wrong with a record, no steps were found
        return {"steps": None}
    return {"steps": _steps(rank), "ordinary": ordinary_shares(rank)}


def _steps(rank: RankRecord) -> int:
    """Steps that were found: those of the record, the slowed-down ones, those in start-up.

    One ends the start-up, which is told apart from the steps; where a script updates its weights
    itself, some lie in it before that is recognised.
    """
    in_start_up = [
        1 + event.detail.get("steps", 0) for event in rank.events if event.name == "start-up"
    ]
    return max((step.index for step in rank.steps or ()), default=-1) + 1 + sum(in_start_up)
