"""A training with evaluation, checkpoints and workers under `watch`, sampled as long as asked.

Both are programs of their own here. In a fork of this process every page that is written for the
first time stops being shared with it, which looks like growth for hours.
"""

import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.drill.lives import Life, begin_program
from tests.drill.results import Tally
from tests.drill.workload import CONFIG

EVERY_S = 5.0
SETTLE_SHARE = 1 / 3
"""Of the time, at most ten minutes: what is still being filled then is not counted as growth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One process at one moment."""

    at_s: float
    held_bytes: int
    """Its own memory that is no page of a file, shared with forked workers or not."""
    pss_bytes: int
    """Its share of that and of shared memory. A page that was shared with a worker counts more as
    soon as either writes to it, so this rises for a while where nothing is held on to."""
    handles: int
    threads: int


def soak(folder: Path, dice: random.Random, until_s: float) -> Tally:
    """Train and watch until the time is over; what a process holds must not grow."""
    del dice
    tally = Tally()
    config = folder / "soak.yaml"
    config.write_text(CONFIG % {"steps": 100_000_000})
    run = ["-m", "pitstop", "train", str(config), "--work-dir", str(folder / "w")]
    train = begin_program([*run, "checkpoint.every_steps=50"], folder / "train.log")
    follow = ["-m", "pitstop", "watch", str(folder / "w" / "run"), "--wait"]
    watch = begin_program(follow, folder / "watch.log")
    samples: dict[str, list[Sample]] = {"train": [], "watch": []}
    while time.monotonic() < until_s and "checkpoint in" not in train.text and not train.poll():
        time.sleep(EVERY_S / 5)  # before its first save a run still opens what it will hold
    begun_s = time.monotonic()
    while time.monotonic() < until_s and not train.poll() and not watch.poll():
        for name, life in (("train", train), ("watch", watch)):
            found = _sample(life, begun_s)
            if found is not None:
                samples[name].append(found)
        time.sleep(EVERY_S)
    for name, life in (("watch", watch), ("train", train)):
        ended = life.code is not None
        life.kill_group()
        life.wait(60)
        grown = growth(samples[name])
        tally.extra[name] = grown
        troubles = ["ended early"] if ended else []
        troubles += [each for each in ("handles", "threads") if grown[f"{each}_grown"] > 0]
        tally.count(f"soak, {name}", troubles, life.text[-500:])
    return tally


def _sample(life: Life, begun_s: float) -> Sample | None:
    folder = Path("/proc", str(life.pid))
    try:
        _, *lines = (folder / "smaps_rollup").read_text().splitlines()
        size_bytes = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines}
        return Sample(
            at_s=round(time.monotonic() - begun_s, 1),
            held_bytes=size_bytes["Anonymous:"],
            # Without pages of files: those count less whenever anybody else maps the same file.
            pss_bytes=size_bytes["Pss_Anon:"] + size_bytes["Pss_Shmem:"],
            handles=len(list((folder / "fd").iterdir())),
            threads=len(list((folder / "task").iterdir())),
        )
    except (OSError, ValueError):  # it is gone, or going
        return None


def growth(samples: list[Sample]) -> dict[str, float]:
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
        # By the least that was held: a save or a verdict under way holds files and a thread that
        # come and go, a leak is held by every sample after it.
        "handles_grown": _least(late, "handles") - _least(early, "handles"),
        "threads_grown": _least(late, "threads") - _least(early, "threads"),
    }


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
