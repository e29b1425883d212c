"""A training with evaluation, checkpoints, workers and a cache under `watch`, sampled for hours.

    python -m tests.drill.soak --minutes 9.5 --out soak.json

Where there is a GPU it is trained on, and its memory is sampled too. Both commands are programs of
their own. In a fork of this process every page that is written for the first time stops being
shared with it, which looks like growth for hours.
"""

import argparse
import json
import platform
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.drill.lives import Life, begin_program
from tests.drill.results import Tally
from tests.drill.workload import CONFIG, PACED, install

EVERY_S = 5.0
SETTLE_SHARE = 1 / 3
"""Of the time, at most ten minutes: what is still being filled then is not counted as growth."""

MOST_BYTES_PER_HOUR = 1_000_000
LEAST_JUDGED_S = 1800.0
"""Of samples after settling, for a line through them to say something of an hour."""

_MOST_POINTS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One process, or one with its workers, at one moment."""

    at_s: float
    held_bytes: int
    """Its own memory that is no page of a file, shared with forked workers or not."""
    pss_bytes: int
    """Its share of that and of shared memory. A page that was shared with a worker counts more as
    soon as either writes to it: only the sum over all who share says what the host gives."""
    handles: int
    threads: int


@dataclass(slots=True)
class Soak:
    """A training and a `watch` of it, and what they held so far."""

    train: Life
    watch: Life
    record: Path
    begun_s: float = 0.0
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    device: list[dict[str, int]] = field(default_factory=list)
    """What the training read of its GPU's memory: step, bytes allocated, bytes reserved."""
    _read_bytes: int = 0

    @property
    def is_running(self) -> bool:
        """Whether both still live."""
        return not self.train.poll() and not self.watch.poll()

    def sample(self) -> None:
        """Look at each process, and at what the training says of its device."""
        at_s = time.monotonic() - self.begun_s
        whom = {
            "watch": [self.watch.pid],
            "train": [self.train.pid],
            "train and workers": self.train.members(),
        }
        for name, pids in whom.items():
            with suppress(OSError, ValueError):  # one is gone, or going
                self.samples.setdefault(name, []).append(_sample(pids, at_s))
        self._read_device()

    def _read_device(self) -> None:
        with suppress(FileNotFoundError), self.record.open("rb") as file:
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole) + len(end)
            for line in whole.splitlines():
                if line.startswith(b'{"kind":"memory"'):
                    self._take_device(json.loads(line))

    def _take_device(self, reading: dict[str, Any]) -> None:
        for found in reading["devices"][:1]:
            kept = {name: found[f"{name}_bytes"] for name in ("allocated", "reserved")}
            self.device.append({"step": reading["step"], **kept})

    def summary(self) -> dict[str, dict[str, Any]]:
        """Say what each held after settling, and how much that grew."""
        found: dict[str, dict[str, Any]] = {
            name: growth(samples) for name, samples in self.samples.items()
        }
        if self.device:
            found["device"] = device_growth(self.device)
        return found


def begin_soak(folder: Path) -> Soak:
    """Start a training that does not end by itself, and a `watch` of it."""
    config = folder / "soak.yaml"
    config.write_text(CONFIG % {"steps": 100_000_000})
    run = ["-m", "pitstop", "train", str(config), "--work-dir", str(folder / "w")]
    # Smaller than the samples: items come and go in every epoch.
    cache = ["cache.budget=3MiB", "cache.policy=lru"]
    settings = [f"model.kind={PACED}", *cache, "checkpoint.every_steps=50"]
    follow = ["-m", "pitstop", "watch", str(folder / "w" / "run"), "--wait"]
    return Soak(
        train=begin_program([*run, *settings], folder / "train.log"),
        watch=begin_program(follow, folder / "watch.log"),
        record=folder / "w" / "run" / "rank-0.jsonl",
    )


def soak(
    folder: Path,
    dice: random.Random,
    until_s: float,
    tell: Callable[[Soak], None] = lambda _: None,
) -> Tally:
    """Train and watch until the time is over; what a process holds must not grow.

    Args:
        folder: Where both write.
        dice: Not needed: nothing is left to chance here.
        until_s: The end, on the monotonic clock.
        tell: Called after every sample.
    """
    del dice
    found = begin_soak(folder)
    while time.monotonic() < until_s and "checkpoint in" not in found.train.text:
        if not found.is_running:
            break
        time.sleep(EVERY_S / 5)  # before its first save a run still opens what it will hold
    found.begun_s = time.monotonic()
    while time.monotonic() < until_s and found.is_running:
        found.sample()
        tell(found)
        time.sleep(EVERY_S)
    tally = Tally()
    tally.extra = found.summary()
    for name, life in (("watch", found.watch), ("train", found.train)):
        troubles = ["ended early"] if life.poll() else []
        life.kill_group()
        life.wait(60)
        troubles += [
            trouble
            for what, grown in tally.extra.items()
            if what.partition(" ")[0] == name
            for trouble in troubles_of(grown, is_whole=what != "train")
        ]
        if name == "train" and (device := tally.extra.get("device")) is not None:
            troubles += device_troubles_of(device)
        tally.count(f"soak, {name}", troubles, life.text[-500:])
    return tally


def troubles_of(grown: dict[str, Any], *, is_whole: bool) -> list[str]:
    """Name what grew.

    Args:
        grown: What `growth` gives.
        is_whole: Whether all who share its memory are counted, so that its size says something.
    """
    troubles = [each for each in ("handles", "threads") if grown[f"{each}_grown"] > 0]
    judged_s = grown["seconds"] - grown["settled_after_s"]
    if (
        is_whole
        and judged_s >= LEAST_JUDGED_S
        and grown["pss_bytes_per_hour"] > MOST_BYTES_PER_HOUR
    ):
        troubles.append("memory")
    return troubles


def device_troubles_of(found: dict[str, Any]) -> list[str]:
    """Name what of a device's memory was more later than in the first third."""
    return [
        f"device memory {name}"
        for name in ("allocated", "reserved")
        if found[f"{name}_later_bytes"] > found[f"{name}_first_bytes"]
    ]


def _sample(pids: Sequence[int], at_s: float) -> Sample:
    folders = [Path("/proc", str(pid)) for pid in pids]
    sizes = [_sizes(folder) for folder in folders]
    return Sample(
        at_s=round(at_s, 1),
        held_bytes=sum(size["Anonymous:"] for size in sizes),
        # Without pages of files: those count less whenever anybody else maps the same file.
        pss_bytes=sum(size["Pss_Anon:"] + size["Pss_Shmem:"] for size in sizes),
        handles=sum(len(list((folder / "fd").iterdir())) for folder in folders),
        threads=sum(len(list((folder / "task").iterdir())) for folder in folders),
    )


def _sizes(folder: Path) -> dict[str, int]:
    _, *lines = (folder / "smaps_rollup").read_text().splitlines()
    return {line.split()[0]: int(line.split()[1]) * 1024 for line in lines}


def growth(samples: list[Sample]) -> dict[str, Any]:
    """Fit a line through what was seen after the first part; handles and threads are compared."""
    last_s = samples[-1].at_s if samples else 0.0
    settled_s = min(600.0, SETTLE_SHARE * last_s)
    kept = [sample for sample in samples if sample.at_s >= settled_s]
    middle = len(kept) // 2
    early, late = kept[:middle], kept[middle:]
    return {
        "seconds": last_s,
        "settled_after_s": round(settled_s, 1),
        "samples": len(kept),
        "held_bytes_per_hour": round(_slope(kept, "held_bytes") * 3600),
        "held_first_bytes": kept[0].held_bytes if kept else 0,
        "held_last_bytes": kept[-1].held_bytes if kept else 0,
        "pss_bytes_per_hour": round(_slope(kept, "pss_bytes") * 3600),
        "pss_first_bytes": kept[0].pss_bytes if kept else 0,
        "pss_last_bytes": kept[-1].pss_bytes if kept else 0,
        "pss_bytes_over_time": [sample.pss_bytes for sample in _thinned(samples)],
        # By the least that was held: a save or a verdict under way holds files and a thread that
        # come and go, a leak is held by every sample after it.
        "handles_grown": _least(late, "handles") - _least(early, "handles"),
        "threads_grown": _least(late, "threads") - _least(early, "threads"),
    }


def device_growth(readings: list[dict[str, int]]) -> dict[str, Any]:
    """Compare what a device held in the first third of the readings with all that came after."""
    settled = len(readings) // 3
    before, after = readings[: settled + 1], readings[settled:]
    return {
        "readings": len(readings),
        "last_step": readings[-1]["step"],
        **{
            f"{name}_{part}_bytes": max(reading[name] for reading in seen)
            for name in ("allocated", "reserved")
            for part, seen in (("first", before), ("later", after))
        },
    }


def _thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    return samples[:: max(1, -(-len(samples) // _MOST_POINTS))]


def _least(samples: list[Sample], name: str) -> int:
    return min((asdict(sample)[name] for sample in samples), default=0)


def _slope(samples: list[Sample], name: str) -> float:
    """Bytes a second, by least squares."""
    count = len(samples)
    if count < 2:
        return 0.0
    mean_s = sum(sample.at_s for sample in samples) / count
    values = [asdict(sample)[name] for sample in samples]
    mean = sum(values) / count
    above = sum(
        (sample.at_s - mean_s) * (value - mean)
        for sample, value in zip(samples, values, strict=True)
    )
    below = sum((sample.at_s - mean_s) ** 2 for sample in samples)
    return above / below if below else 0.0


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def main() -> None:
    """Soak alone, and write what was seen so far into a file."""
    parser = argparse.ArgumentParser(description="A soak alone, told as it goes.")
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--out", type=Path, required=True, help="JSON file, written as it goes")
    options = parser.parse_args()
    machine = _machine()
    until_s = time.monotonic() + 60 * options.minutes

    def tell(found: Soak) -> None:
        _write(options.out, {**machine, "is_over": False, "latest": found.summary()})

    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        install(Path(name) / "site")
        tally = soak(Path(name), random.Random(0), until_s, tell)
    found = {**machine, "is_over": True, "latest": tally.extra, "troubles": dict(tally.troubles)}
    _write(options.out, found)
    print(json.dumps(found, indent=1))
    for example in tally.examples:
        print(example)


def _write(path: Path, found: dict[str, Any]) -> None:
    """Replace the file as a whole: somebody may read it, or end this, at any moment."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(found, indent=1) + "\n")
    beside.replace(path)


if __name__ == "__main__":
    main()
