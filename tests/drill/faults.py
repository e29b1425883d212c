"""Faults of the world around a command: disks, memory, limits, clocks, company.

Each is made for real where the system allows it: a small file system is a mount of its own, which
only the command sees.
"""

import ctypes
import os
import random
import resource
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from pitstop.train.state.checkpoint import find_newest_whole
from tests.drill.lives import LIMIT_S, POLL_S, Life, begin
from tests.drill.results import Tally
from tests.drill.workload import CONFIG, SAMPLES

_NEW_MOUNTS = 0x00020000
_READ_ONLY, _REMOUNT, _PRIVATE, _RECURSIVE = 1, 32, 1 << 18, 1 << 14
_NOBODY = 65534
_MANY_HANDLES = 10_000

Case = Callable[["Ground"], Iterator[tuple[str, list[str], str]]]


class Ground:
    """A folder to break things in, and what is sound there."""

    def __init__(self, folder: Path, limit_s: float) -> None:
        self.folder = folder
        self.limit_s = limit_s
        self.config = folder / "line.yaml"
        self.config.write_text(CONFIG % {"steps": 60})
        self._number = 0

    def place(self) -> Path:
        """Give an empty folder."""
        self._number += 1
        path = self.folder / f"at-{self._number}"
        path.mkdir()
        return path

    def train(self, work_dir: Path, *more: str, before: Callable[[], None] | None = None) -> Life:
        """Start a training."""
        line = ["train", str(self.config), "--work-dir", str(work_dir), *more]
        return begin(line, work_dir.parent / f"{work_dir.name}.log", before=before)

    def sound(self) -> Path:
        """Give the folder of a finished run, made once."""
        folder = self.folder / "sound"
        if not folder.exists():
            life = self.train(folder)
            life.wait(600)
            assert life.code == 0, life.text
        return folder / "run"

    def ended(self, life: Life, codes: set[int]) -> list[str]:
        """Wait for an end, and name what is wrong with it."""
        in_time = life.wait(self.limit_s)
        troubles = {
            "hang": not in_time,
            "code": life.code not in codes,
            "traceback": "Traceback (most recent" in life.text,
            "orphan": life.orphans(self.limit_s) > 0,
        }
        return [name for name, is_so in troubles.items() if is_so]


def mounted(at: Path, size: str, *, read_only: bool = False) -> Callable[[], None]:
    """Have a new process see a small file system at a place."""

    def mount() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        _must(libc.unshare(_NEW_MOUNTS))
        _must(libc.mount(b"none", b"/", None, _PRIVATE | _RECURSIVE, None))
        _must(libc.mount(b"none", bytes(at), b"tmpfs", 0, f"size={size}".encode()))
        if read_only:
            _must(libc.mount(b"none", bytes(at), b"tmpfs", _REMOUNT | _READ_ONLY, None))

    return mount


def can_mount() -> bool:
    """Tell whether this process may make file systems of its own."""
    pid = os.fork()
    if pid == 0:
        os._exit(int(ctypes.CDLL(None).unshare(_NEW_MOUNTS) != 0))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def full_disk(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """Record, checkpoint, page and pack on a disk that is full."""
    for size in ("8k", "24k", "64k", "200k"):
        at = ground.place()
        life = ground.train(at, before=mounted(at, size))
        yield f"full disk, training ({size})", ground.ended(life, {0, 2}), life.text
    at = ground.place()
    page = ["report", str(ground.sound()), "-o", str(at / "page.html")]
    life = begin(page, ground.folder / "page.log", before=mounted(at, "4k"))
    yield "full disk, report", ground.ended(life, {2}), life.text
    clips = ground.place() / "clips"
    small = ["--train-clips", "1", "--test-clips", "1", "--frames", "2", "--size", "16x32"]
    begin(["data", "make", "deblur", str(clips), *small], ground.folder / "make.log").wait(600)
    pack = ["data", "pack", str(clips), "--output", str(at / "x.pack")]
    life = begin(pack, ground.folder / "pack.log", before=mounted(at, "4k"))
    yield "full disk, pack", ground.ended(life, {2}), life.text


def read_only_disk(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """A folder that nothing can be written to."""
    at = ground.place()
    life = ground.train(at, before=mounted(at, "64m", read_only=True))
    yield "read-only disk", ground.ended(life, {2}), life.text


def limits(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """Few handles, little memory, small shared memory, a clock that goes backwards."""

    def few_handles() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))

    def little_memory() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[5]) * 4096
        most = used + (24 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def backwards() -> None:
        now_s = [time.time()]  # noqa: TID251 - it is this clock that goes wrong

        def earlier() -> float:
            now_s[0] -= 3600.0
            return now_s[0]

        time.time = earlier  # noqa: TID251

    for name, before, codes in (
        ("24 handles", few_handles, {0, 2}),
        ("memory limit", little_memory, {0, 1, 2}),
        ("clock goes backwards", backwards, {0}),
    ):
        life = ground.train(ground.place() / "w", before=before)
        yield name, ground.ended(life, codes), life.text
    if can_mount():
        life = ground.train(ground.place() / "w", before=mounted(Path("/dev/shm"), "16k"))
        yield "small /dev/shm", ground.ended(life, {0, 2}), life.text


def many_handles(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """Ten thousand files are open already: numbers that no longer fit into a set of 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < _MANY_HANDLES + 1000:
        return

    def open_many() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_MANY_HANDLES + 1000, most))
        for _ in range(_MANY_HANDLES):
            os.open(os.devnull, os.O_RDONLY)

    life = ground.train(ground.place() / "w", before=open_many)
    yield "10,000 open files, training", ground.ended(life, {0}), life.text
    for command in (["doctor"], ["watch", "--once"]):
        reader = begin(
            [*command, str(ground.sound())], ground.folder / "reader.log", before=open_many
        )
        yield f"10,000 open files, {command[0]}", ground.ended(reader, {0, 1}), reader.text


def vanishing_data(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """A file of the dataset is removed while workers read the others."""
    for policy, codes, said in (
        ("raise", {2}, "No such file or directory"),
        ("skip", {0}, "finished at step"),
    ):
        at = ground.place()
        samples = at / "samples"
        samples.mkdir()
        for index in range(SAMPLES):
            (samples / f"{index}.txt").write_text(str(index))
        life = ground.train(
            at / "w", f"loader.corrupt={policy}", "train.steps=120", before=_reading_from(samples)
        )
        _await(lambda life=life: "step 10/" in life.text or life.poll(), ground.limit_s)
        (samples / "17.txt").unlink(missing_ok=True)
        troubles = ground.ended(life, codes)
        troubles += [] if said in life.text else ["does not say so"]
        yield f"a file of the data vanishes, {policy}", troubles, life.text


def _reading_from(folder: Path) -> Callable[[], None]:
    """Have each sample of a new process come with the reading of its file."""

    def install() -> None:
        from tests.unit.train import runs

        sound = runs.LineSamples.sample

        def sample(self: runs.LineSamples, epoch: int, index: int):
            (folder / f"{index}.txt").read_text()
            return sound(self, epoch, index)

        runs.LineSamples.sample = sample

    return install


def paused_child(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """The doctor, or the script that it measures, stands still for a moment."""
    at = ground.place()
    script = at / "script.py"
    script.write_text(_SCRIPT)
    for who in ("the doctor's child", "doctor"):
        log = at / "doctor.log"
        line = ["doctor", "--record", str(at / who), "--", sys.executable, str(script)]
        life = begin(line, log)
        _await(lambda at=at: (at / "steps").exists(), ground.limit_s)
        children = life.workers()
        victim = children[0] if children and who != "doctor" else life.pid
        for number in (signal.SIGSTOP, signal.SIGCONT):
            _send(victim, number)
            time.sleep(0.3)
        troubles = ground.ended(life, {7})
        yield f"pause, {who}", troubles, life.text
        (at / "steps").unlink(missing_ok=True)


_SCRIPT = """
import sys, time
from pathlib import Path
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(150):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    if step == 30:
        Path(__file__).with_name("steps").write_text("30")
sys.exit(7)
"""


def not_finite(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """A NaN in the data at a chosen step, under each policy."""

    def poisoned() -> None:
        from tests.unit.train import runs

        sound = runs.LineSamples.sample

        def sample(self: runs.LineSamples, epoch: int, index: int):
            inputs, target = sound(self, epoch, index)
            if (epoch, index) == (1, SAMPLES // 2):
                inputs[0] = float("nan")
            return inputs, target

        runs.LineSamples.sample = sample

    for policy, codes in (("skip", {0}), ("rollback", {0}), ("stop", {2})):
        life = ground.train(ground.place() / "w", f"train.on_nan={policy}", before=poisoned)
        yield f"NaN at a step, {policy}", ground.ended(life, codes), life.text


def company(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """Two starts at once; readers of a live record; another user of the machine."""
    at = ground.place()
    first = ground.train(at / "w", "train.steps=100000")
    try:
        yield from _meet(ground, first, at)
        os.kill(first.pid, signal.SIGTERM)
        yield "SIGTERM with company", ground.ended(first, {1}), first.text
    finally:
        first.kill_group()
        first.wait(ground.limit_s)


def _meet(ground: Ground, first: Life, at: Path) -> Iterator[tuple[str, list[str], str]]:
    _await((at / "w" / "run" / "rank-0.jsonl").exists, ground.limit_s)
    second = begin(
        ["train", str(ground.config), "--work-dir", str(at / "w"), "--resume", "auto"],
        at / "second.log",
    )
    troubles = ground.ended(second, {2})
    troubles += [] if f"process {first.pid} on" in second.text else ["does not say who"]
    yield "two runs in one folder", troubles, second.text
    for command in (["doctor"], ["watch", "--once"], ["report", "-o", str(at / "page.html")]):
        reader = begin([*command, str(at / "w" / "run")], at / "reader.log")
        yield f"reader of a live record, {command[0]}", ground.ended(reader, {0, 1}), reader.text
    yield "files of a run to another user", _modes(at / "w"), ""
    yield "shared memory to another user", _shared(first), ""


def _modes(work_dir: Path) -> list[str]:
    """Nothing of a run is executable, or writable to others."""
    wrong = [
        path.name
        for path in work_dir.rglob("*")
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o133
    ]
    return [f"mode of {name}" for name in wrong]


def _shared(life: Life) -> list[str]:
    """Another user can open none of the files that a run shares with its workers."""
    pid = os.fork()
    if pid == 0:
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        opened = 0
        for name in range(256):
            try:
                os.close(os.open(f"/proc/{life.pid}/fd/{name}", os.O_RDONLY))
                opened += 1
            except OSError:
                continue
        os._exit(min(opened, 100))
    opened = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [f"{opened} files are open to it"] if opened else []


def damaged_saves(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """Files of a run that vanish, are cut or changed between two starts."""
    for name, harm in (
        ("a save vanishes", lambda run: shutil.rmtree(_newest(run))),
        ("a save is cut", lambda run: os.truncate(_newest(run) / "common.pt", 100)),
        ("a bit of a save flips", _flip),
        ("the record vanishes", lambda run: (run / "rank-0.jsonl").unlink()),
        ("the record is cut", lambda run: os.truncate(run / "rank-0.jsonl", 200)),
    ):
        work_dir = ground.place() / "w"
        shutil.copytree(ground.sound(), work_dir / "run")
        harm(work_dir / "run")
        life = ground.train(work_dir, "--resume", "auto", "train.steps=70")
        troubles = ground.ended(life, {0})
        checkpoint, _ = find_newest_whole(work_dir / "run" / "checkpoints")
        if checkpoint is None or checkpoint.manifest.step != 70:
            troubles.append("did not go on")
        yield name, troubles, life.text


def deleted_folder(ground: Ground) -> Iterator[tuple[str, list[str], str]]:
    """The folder of a run is deleted, or another takes its place, while it trains."""
    for name, is_replaced in (("deleted", False), ("replaced", True)):
        at = ground.place()
        life = ground.train(at / "w", "train.steps=100000")
        _await(lambda life=life: "step 10/" in life.text or life.poll(), ground.limit_s)
        (at / "w" / "run").rename(at / "gone")
        if is_replaced:
            (at / "w" / "run").mkdir()
        shutil.rmtree(at / "gone", ignore_errors=True)
        troubles = ground.ended(life, {2})
        # Where a save was under way, it is that which fails.
        said = ("was deleted while", "another folder than", "No such file or directory")
        troubles += [] if any(words in life.text for words in said) else ["does not say so"]
        yield f"the folder of a run is {name}", troubles, life.text


def _newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("save-*"))


def _flip(run: Path) -> None:
    path = _newest(run) / "common.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


CASES: tuple[Case, ...] = (
    damaged_saves,
    deleted_folder,
    not_finite,
    limits,
    many_handles,
    vanishing_data,
    paused_child,
    company,
)
MOUNTING: tuple[Case, ...] = (full_disk, read_only_disk)


def break_world(
    folder: Path, dice: random.Random, until_s: float, *, is_short: bool = False
) -> Tally:
    """Meet every fault once, and again while there is time; in short, the first of each case."""
    del dice
    tally = Tally()
    begun_s = time.monotonic()
    ground = Ground(folder, LIMIT_S)
    ground.sound()
    ground.limit_s = max(LIMIT_S, 20 * (time.monotonic() - begun_s))
    cases = (*CASES, *(MOUNTING if can_mount() else ()))
    while True:
        for case in cases:
            found = case(ground)
            for name, troubles, text in islice(found, 1 if is_short else None):
                tally.count(name, troubles, text)
        if time.monotonic() > until_s:
            return tally


def _await(happens: Callable[[], bool], limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while not happens() and time.monotonic() < until_s:
        time.sleep(POLL_S)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _must(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
