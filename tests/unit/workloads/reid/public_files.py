"""Small sets in the layouts of Market-1501, MSMT17 and SYSU-MM01, written by hand."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.unit.workloads.reid.people_files import jpeg


def write_market(root: Path, *, seed: int = 0) -> Path:
    """Four people to train on, five to find, two distractors and three junk boxes."""
    draw = np.random.default_rng(seed)
    for person in (2, 7, 11, 1500):
        for number, camera in enumerate((1, 1, 3)):
            name = f"{person:04d}_c{camera}s1_{number:06d}_01.jpg"
            _write(root / "bounding_box_train" / name, draw)
    for person in (1, 5, 8, 9, 1501):
        for camera in (1, 2, 6):
            for number in range(2):
                name = f"{person:04d}_c{camera}s{1 + number}_{number:06d}_02.jpg"
                _write(root / "bounding_box_test" / name, draw)
        for camera in (1, 6):
            _write(root / "query" / f"{person:04d}_c{camera}s1_000009_00.jpg", draw)
    for person, number in (("0000", 0), ("0000", 1), ("-1", 0), ("-1", 1), ("-1", 2)):
        name = f"{person}_c{1 + number}s1_{number:06d}_03.jpg"
        _write(root / "bounding_box_test" / name, draw)
    (root / "bounding_box_test" / "Thumbs.db").write_bytes(b"no image")
    return root


def write_msmt(root: Path, *, seed: int = 0) -> Path:
    """Numbers of people begin at 0 in both parts; nobody is in both."""
    draw = np.random.default_rng(seed)
    lists: dict[str, list[str]] = {"train": [], "val": [], "query": [], "gallery": []}
    for folder, parts in (("train", ("train", "val")), ("test", ("query", "gallery"))):
        for person in range(4):
            for number in range(6):
                camera = 1 + (person + number) % 15
                name = f"{person:04d}/{person:04d}_{number:03d}_{camera:02d}_0303morning_0015_0.jpg"
                _write(root / folder / name, draw)
                is_minor = number == 5 if folder == "train" else number < 2
                part = parts[int(is_minor)] if folder == "train" else parts[int(not is_minor)]
                lists[part].append(f"{name} {person}")
    for part, lines in lists.items():
        (root / f"list_{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def write_sysu(root: Path, *, seed: int = 0) -> Path:
    """Not every person was seen by every camera."""
    draw = np.random.default_rng(seed)
    people = {"train": (1, 2, 4), "val": (3,), "test": (6, 10, 12, 14, 333)}
    for part, numbers in people.items():
        for person in numbers:
            for camera in range(1, 7):
                if camera not in (1, 3) and draw.random() < 0.2:
                    continue
                for number in range(1, 4):
                    _write(root / f"cam{camera}" / f"{person:04d}" / f"{number:04d}.jpg", draw)
        path = root / "exp" / f"{part}_id.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(",".join(map(str, numbers)) + "\n", encoding="utf-8")
    return root


WRITERS: dict[str, Callable[[Path], Path]] = {
    "market1501": write_market,
    "msmt17": write_msmt,
    "sysu_mm01": write_sysu,
}


def _write(path: Path, draw: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Bytes of its own: files of two people that are the same are reported.
    level = int(draw.integers(0, 250))
    path.write_bytes(jpeg(level=level, quality=95) + draw.bytes(8))
