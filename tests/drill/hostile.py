"""Inputs that nobody means well with: mutated files, absurd values, odd paths, one command each.

Each must end by itself with an exit code of ours: no traceback, no hang, bounded memory, nothing in
the output that a terminal or a browser would obey.
"""

import hashlib
import json
import math
import os
import random
import resource
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from pitstop.config.sections import RunConfig
from pitstop.train.state.manifest import FileSum, Manifest, write_manifest
from tests.drill.lives import LIMIT_S, begin
from tests.drill.results import Tally
from tests.drill.workload import CONFIG

ROOT = Path(__file__).parents[2]
MOST_BYTES = 2 << 30
CODES = {0, 1, 2, 3}
_TRACEBACK = "Traceback (most recent"
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
SCRIPT = "<script>alert(1)</script>"

_ABSURD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**40, -(10**40), 1e308, -1e308, 1e-320, math.inf,
    -math.inf, math.nan, "", "x" * 100_000, "\0", ESCAPE, SCRIPT, "../../../etc/passwd",
    "\u202e\u0000\ud83d", [], {}, [[]], {"a": {"a": {}}}, [1] * 10_000, "9" * 5000, "nan", "true",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input, laid out in a folder, and the command that meets it."""

    kind: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)


Maker = Callable[["Kitchen", Path], Case]


class Kitchen:
    """Makes hostile inputs out of sound ones."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.dice = dice
        self.sound = folder / "sound"
        self.sound.mkdir()
        self.record = _sound_record(self.sound)
        self.configs = sorted((ROOT / "configs").rglob("*.yaml"))
        self.old = [path for path in (ROOT / "tests" / "data").rglob("*") if _is_old(path)]
        self.logs = [path for path in (ROOT / "tests" / "data" / "logs").iterdir() if _is_log(path)]
        self.keys = sorted(_keys(RunConfig.model_json_schema()))
        self.clips = self.sound / "clips"
        self.pack = self.sound / "clips.pack"
        self.checkpoint: Path | None = None

    def absurd(self) -> Any:
        return self.dice.choice(_ABSURD)

    def bytes_like(self, data: bytes) -> bytes:
        """Damage bytes: flipped, cut, doubled, overwritten, filled."""
        changed = bytearray(data)
        for _ in range(self.dice.randint(1, 8)):
            at = self.dice.randrange(len(changed) + 1)
            what = self.dice.randrange(6)
            if what == 0 and at < len(changed):
                changed[at] ^= 1 << self.dice.randrange(8)
            elif what == 1:
                del changed[at:]
            elif what == 2:
                changed[at:at] = changed[: self.dice.randint(0, 2000)]
            elif what == 3:
                changed[at : at + 8] = self.dice.randbytes(8)
            elif what == 4:
                changed[at:at] = self.dice.choice([b"\0", b"\xff", b"\n", b"{", b"9"]) * 5000
            else:
                changed[at:at] = repr(self.absurd()).encode("utf-8", "replace")
        return bytes(changed)

    def value_like(self, value: Any, depth: int = 0) -> Any:
        """Replace one thing, somewhere, by an absurd one."""
        if isinstance(value, dict) and value and depth < 6 and self.dice.random() < 0.85:
            key = self.dice.choice(list(value))
            if self.dice.random() < 0.1:
                return {name: each for name, each in value.items() if name != key}
            return value | {key: self.value_like(value[key], depth + 1)}
        if isinstance(value, list) and value and depth < 6 and self.dice.random() < 0.85:
            at = self.dice.randrange(len(value))
            return [*value[:at], self.value_like(value[at], depth + 1), *value[at + 1 :]]
        return self.absurd()


def cases(kitchen: Kitchen, folder: Path) -> Iterator[Case]:
    """Give cases of all kinds in turn, without an end."""
    number = 0
    while True:
        for maker in MAKERS:
            number += 1
            place = folder / str(number)
            place.mkdir()
            yield maker(kitchen, place)
            shutil.rmtree(place, ignore_errors=True)


def serve(folder: Path, dice: random.Random, until_s: float, *, most: int | None = None) -> Tally:
    """Meet hostile inputs with real commands until the time is over."""
    tally = Tally()
    kitchen = Kitchen(folder, dice)
    _make_data(kitchen)
    pace_s = _pace_s(folder)
    limit_s = max(LIMIT_S, 20 * pace_s)
    for number, case in enumerate(cases(kitchen, folder)):
        if time.monotonic() > until_s or number == most:
            break
        before = partial(_limited, case.environment)
        life = begin(case.arguments, folder / "case.log", before=before, folder=folder)
        in_time = life.wait(limit_s)
        text = life.text
        troubles = {
            "hang": not in_time,
            # At the begin of a line: `--explain` shows lines of a log, which may hold one.
            "traceback": text.startswith(_TRACEBACK) or f"\n{_TRACEBACK}" in text,
            "code": life.code not in CODES,
            "memory": life.peak_bytes > MOST_BYTES,
            "escape": "\x1b" in text,
            "script": _planted(folder / "page.html"),
            "left running": life.orphans(limit_s) > 0,
        }
        tally.peak_bytes = max(tally.peak_bytes, life.peak_bytes)
        found = [name for name, is_so in troubles.items() if is_so]
        tally.count(case.kind, found, f"code {life.code}, {case.arguments}: {text}"[:3000])
        if found:
            _keep(folder, case, tally)
    return tally


def _keep(folder: Path, case: Case, tally: Tally) -> None:
    """Keep a few inputs that made trouble, for whoever looks into it."""
    kept = Path(os.environ.get("DRILL_KEEP", ""))  # noqa: TID251 - for a person at work
    if kept.name and len(tally.examples) < 20:
        place = kept / f"{case.kind.replace(' ', '-')}-{sum(tally.tried.values())}"
        shutil.copytree(folder, place, symlinks=True, dirs_exist_ok=True, ignore=_special)


def _special(folder: str, names: list[str]) -> list[str]:
    paths = {name: Path(folder) / name for name in names}
    return [name for name, path in paths.items() if not (path.is_file() or path.is_dir())]


def _limited(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)  # noqa: TID251 - it is the environment that is hostile
    # Far above what is asked for: a case that wants more is counted, and does not take the machine.
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _planted(page: Path) -> bool:
    try:
        return SCRIPT in page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    finally:
        page.unlink(missing_ok=True)


def _pace_s(folder: Path) -> float:
    begun_s = time.monotonic()
    life = begin(["--version"], folder / "pace.log")
    life.wait(600)
    return time.monotonic() - begun_s


# Makers


def _record(kitchen: Kitchen, place: Path) -> Case:
    """A record with a damaged byte, an absurd value, or lines in another order."""
    lines = kitchen.record.split(b"\n")
    kind = kitchen.dice.randrange(3)
    if kind == 0:
        data = kitchen.bytes_like(kitchen.record)
    else:
        for _ in range(kitchen.dice.randint(1, 4)):
            at = kitchen.dice.randrange(len(lines))
            if kind == 1 and lines[at]:
                changed = kitchen.value_like(json.loads(lines[at]))
                lines[at] = json.dumps(changed, separators=(",", ":")).encode("utf-8", "replace")
            else:
                lines[at : at + 1] = [kitchen.dice.choice(lines)] * kitchen.dice.randint(0, 50)
        data = b"\n".join(lines)
    path = place / "rank-0.jsonl"
    path.write_bytes(data)
    if kitchen.dice.random() < 0.2:
        (place / "pictures").mkdir()
        (place / "pictures" / "pictures.json").write_text(_pictures(kitchen))
    command = kitchen.dice.choice(
        [["doctor", str(place)], ["report", str(place), "-o", "page.html"],
         ["watch", str(path), "--once"], ["doctor", str(path), "--json", "-"]]
    )  # fmt: skip
    return Case(kind=f"record, {command[0]}", arguments=command)


def _pictures(kitchen: Kitchen) -> str:
    sound = {
        "kind": "Pictures", "schema": 1,
        "rows": [{"title": SCRIPT, "cells": [{"caption": "a", "file": "a.png"}], "note": ESCAPE}],
    }  # fmt: skip
    return json.dumps(kitchen.value_like(sound))


def _nested(kitchen: Kitchen, place: Path) -> Case:
    """Records that are large in one way: deep spans, many spans, many ranks, long lines."""
    lines: list[dict[str, Any]] = [{"kind": "run", "schema": 1, "rank": 0}]
    size = kitchen.dice.choice([100, 2000, 20_000])
    what = kitchen.dice.randrange(5)
    if what == 0:
        lines += [
            {"kind": "span", "id": n, "parent": n - 1 if n else None, "name": f"s{n}"}
            for n in range(size)
        ]
    elif what == 1:
        lines += [{"kind": "span", "id": n, "parent": None, "name": f"s{n}"} for n in range(size)]
        lines += [{"kind": "layout", "id": 0, "host": list(range(min(size, 500))), "device": None}]
    elif what == 2:
        lines[0]["world_size"] = 10 ** kitchen.dice.randint(3, 18)
    elif what == 3:
        lines += [
            {"kind": "scalars", "step": n, "values": {f"{n}{SCRIPT}": kitchen.absurd()}}
            for n in range(size)
        ]
    else:
        lines += [{"kind": f"k{n}", "values": ESCAPE * 10} for n in range(size)]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (place / "rank-0.jsonl").write_text(text + "\n", errors="replace")
    command = kitchen.dice.choice(
        [
            ["doctor", str(place)],
            ["report", str(place), "-o", "page.html"],
            ["watch", str(place), "--once"],
        ]
    )
    return Case(kind="large record", arguments=command)


def _config(kitchen: Kitchen, place: Path) -> Case:
    """A configuration with damaged bytes."""
    path = place / "c.yaml"
    path.write_bytes(kitchen.bytes_like(kitchen.dice.choice(kitchen.configs).read_bytes()))
    return Case(kind="configuration", arguments=["config", "check", str(path)])


def _key(kitchen: Kitchen, place: Path) -> Case:
    """Every key with every absurd value, by the command line or in the file."""
    key = kitchen.dice.choice(kitchen.keys)
    value = kitchen.absurd()
    text = json.dumps(value) if kitchen.dice.random() < 0.7 else str(value)
    text = text.replace("\0", "")
    base = kitchen.dice.choice(kitchen.configs)
    if kitchen.dice.random() < 0.5:
        return Case(kind="key", arguments=["config", "check", str(base), f"{key}={text}"])
    tree: Any = value
    for name in reversed(key.split(".")):
        tree = {name: tree}
    path = place / "c.yaml"
    path.write_text(f"base: {base}\n" + json.dumps(tree)[1:-1] + "\n", errors="replace")
    return Case(kind="key", arguments=["config", "check", str(path)])


def _yaml(kitchen: Kitchen, place: Path) -> Case:
    """YAML that is a trap: braces, aliases of aliases, bases in a circle, tags."""
    size = kitchen.dice.choice([30, 3000, 100_000])
    path = place / "c.yaml"
    path.write_text(kitchen.dice.choice(_traps(size)))
    command = kitchen.dice.choice([["config", "check"], ["config", "import"], ["train"]])
    return Case(kind="yaml", arguments=[*command, str(path)])


def _traps(size: int) -> list[str]:
    repeated = ["{", "[", "- ", "a: ", "? ", "&a ", "*a ", "''", "%TAG ! x\n", "\ufeff", "k: 1\n"]
    aliases = "".join(f"b{n}: &b{n} [*a, *a, *a]\n" for n in range(size % 5000))
    return [
        *(each * size for each in repeated),
        "".join(f"k{n}: 1\n" for n in range(size)),
        f"a: &a [x]\n{aliases}",
        "a: &x [*x]\n",
        "a: !!python/object/apply:os.system ['touch OWNED']\n",
        "base: c.yaml\n",
        f"base: [{', '.join(['c.yaml'] * 50)}]\n",
        "base: /dev/zero\n",
        "base: /proc/self/mem\n",
        f"run: {{name: {json.dumps(ESCAPE)}}}\n",
        f"{ESCAPE}: 1\n",
        f"{SCRIPT}: 1\n",
    ]


def _legacy(kitchen: Kitchen, place: Path) -> Case:
    """Old configurations of others, damaged; nothing of them may run."""
    source = kitchen.dice.choice(kitchen.old)
    path = place / source.name
    path.write_bytes(kitchen.bytes_like(source.read_bytes()))
    return Case(kind="old configuration", arguments=["config", "import", str(path)])


def _log(kitchen: Kitchen, place: Path) -> Case:
    """Training logs, damaged."""
    source = kitchen.dice.choice(kitchen.logs)
    path = place / source.name
    path.write_bytes(kitchen.bytes_like(source.read_bytes()))
    extra = ["--explain"] if kitchen.dice.random() < 0.3 else []
    return Case(kind="log", arguments=["doctor", str(path), *extra])


def _pack(kitchen: Kitchen, place: Path) -> Case:
    """A pack with another index and the sums that go with it, or with damaged bytes."""
    whole = kitchen.pack.read_bytes()
    head = struct.Struct("<8sIIQQQ20xI")
    _, version, _, where, length, _, _ = head.unpack(whole[: head.size])
    if kitchen.dice.random() < 0.75:
        index = kitchen.value_like(json.loads(whole[where : where + length]))
        text = json.dumps(index).encode("utf-8", "replace")
        facts = (whole[:8], version, zlib.crc32(text), where, len(text), where + len(text))
        unsigned = head.pack(*facts, 0)[:-4]
        data = head.pack(*facts, zlib.crc32(unsigned)) + whole[head.size : where] + text
    else:
        data = kitchen.bytes_like(whole)
    path = place / "x.pack"
    path.write_bytes(data)
    return Case(kind="pack", arguments=["data", "check", str(path)])


def _dataset(kitchen: Kitchen, place: Path) -> Case:
    """A dataset with one file of it damaged, huge by its header, a link, or something else."""
    root = place / "clips"
    shutil.copytree(kitchen.clips, root)
    victims = sorted(path for path in root.rglob("*") if path.is_file())
    victim = kitchen.dice.choice(victims)
    data = victim.read_bytes()
    what = kitchen.dice.randrange(7)
    if what == 0:
        victim.write_bytes(_huge_png(kitchen.dice.choice([9000, 20_000, 2**31 - 1])))
    elif what == 1:
        victim.unlink()
        victim.symlink_to(victim.name)  # leads to itself
    elif what == 2:
        victim.unlink()
        os.mkfifo(victim)
    elif what == 3:
        victim.unlink()
        victim.symlink_to("/dev/zero")
    elif what == 4:
        victim.write_bytes(_other_picture(kitchen))
    elif what == 5:
        victim.rename(victim.with_name(f"a\n{ESCAPE}\u202e b{victim.suffix}"))
    else:
        victim.write_bytes(kitchen.bytes_like(data))
    command = kitchen.dice.choice([["data", "check", str(root)], ["data", "pack", str(root)]])
    return Case(kind="dataset", arguments=command)


def _odd_path(kitchen: Kitchen, place: Path) -> Case:
    """Paths that are no files, or odd ones, where a file is asked for."""
    fifo, loop = place / "fifo", place / "loop"
    os.mkfifo(fifo)
    loop.symlink_to(loop)
    odd = place / f"a b\n{ESCAPE}\u202e ü"
    odd.write_bytes(kitchen.dice.choice([b"", kitchen.record, b"x" * 1000]))
    path = kitchen.dice.choice(
        ["/dev/zero", "/dev/full", "/proc/self/mem", "/proc/self/maps", str(fifo),
         str(loop), str(odd), str(place), "/", "", "..", "x" * 5000, "/root/\0"[:6], "a" * 300,
         "/proc/self/fd/0", "/dev/stdin", "~", "-", "--", "//", str(place / ".." / ".." / "x")]
    )  # fmt: skip
    command = kitchen.dice.choice(
        [["doctor"], ["report", "-o", "page.html"], ["watch", "--once"], ["config", "check"],
         ["config", "import"], ["data", "check"], ["data", "pack"], ["data", "stats"], ["train"],
         ["eval", "--checkpoint", path], ["infer", "--checkpoint", path],
         ["report", str(kitchen.sound / "run"), "-o"]]
    )  # fmt: skip
    if command[-1] == "-o" and path in ("/", "..", "-", "--", "//"):
        path = str(fifo) if path == "-" else path
    if command[-1] == "-o" and path == str(fifo):
        path = str(loop)  # a pipe is written to, and waits for its reader by right
    return Case(kind="odd path", arguments=[*command, path])


def _checkpoint(kitchen: Kitchen, place: Path) -> Case:
    """A checkpoint with forged states and a manifest that fits them."""
    assert kitchen.checkpoint is not None
    path = place / "save-000001-step-000000003"
    shutil.copytree(kitchen.checkpoint, path)
    victim = path / kitchen.dice.choice(["common.pt", "rank-00000.pt", "manifest.json"])
    if victim.name == "manifest.json":
        body = victim.read_text().partition("\n")[0]
        forged = json.dumps(kitchen.value_like(json.loads(body)))
        forged = forged.encode("utf-8", "replace").decode()
        digest = hashlib.sha256(forged.encode()).hexdigest()
        victim.write_text(f"{forged}\n{digest}\n")
    else:
        victim.write_bytes(_planted_state(kitchen, victim.read_bytes()))
        files = {
            part.name: FileSum(
                size_bytes=part.stat().st_size, sha256=hashlib.sha256(part.read_bytes()).hexdigest()
            )
            for part in path.glob("*.pt")
        }
        manifest = Manifest(step=3, epoch=0, world_size=1, files=files)
        (path / "manifest.json").write_text(write_manifest(manifest))
    config = place / "line.yaml"
    config.write_text(CONFIG % {"steps": 15})
    arguments = ["train", str(config), "--resume", str(path), "--work-dir", str(place / "w")]
    return Case(kind="checkpoint", arguments=[*arguments, "loader.workers=0"])


def _environment(kitchen: Kitchen, place: Path) -> Case:
    """Variables that launchers, shells and terminals set, with values that none of them gives."""
    names = ["WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "COLUMNS", "LINES", "TERM",
             "HOME", "TMPDIR", "LANG", "PYTHONIOENCODING", "CUDA_VISIBLE_DEVICES"]  # fmt: skip
    values = ["", "x", "-1", "0", "2", "9" * 5000, "1e9", "\u0661", "/nonexistent", ESCAPE, SCRIPT]
    chosen = kitchen.dice.sample(names, kitchen.dice.randint(1, 3))
    environment = {name: kitchen.dice.choice(values) for name in chosen}
    config = place / "line.yaml"
    config.write_text(CONFIG % {"steps": 3})
    train = ["train", str(config), "--work-dir", str(place / "w"), "loader.workers=0"]
    command = kitchen.dice.choice([train, ["doctor", str(kitchen.sound / "run")]])
    return Case(kind="environment", arguments=command, environment=environment)


def _run_folder(kitchen: Kitchen, place: Path) -> Case:
    """A run's folder in which something is not what its name says."""
    (place / "rank-0.jsonl").write_bytes(kitchen.record)
    name = kitchen.dice.choice(["rank-0.jsonl", "rank-1.jsonl", "outside.jsonl", "checkpoints"])
    odd = place / name
    odd.unlink(missing_ok=True)
    what = kitchen.dice.randrange(6)
    if what == 0:
        odd.mkdir()
    elif what == 1:
        odd.symlink_to(odd)
    elif what == 2:
        os.mkfifo(odd)
    elif what == 3:
        odd.symlink_to("/dev/zero")
    elif what == 4:
        odd.symlink_to(place / "nowhere")
    else:
        odd.write_bytes(kitchen.dice.randbytes(5000))
    run = kitchen.dice.choice([str(place), f"{place}/../{place.name}", f"{place}/./"])
    command = kitchen.dice.choice(
        [["doctor", run], ["report", run, "-o", "page.html"], ["watch", run, "--once"]]
    )
    return Case(kind="folder of a run", arguments=command)


MAKERS: tuple[Maker, ...] = (
    _record, _config, _key, _log, _pack, _record, _yaml, _legacy, _key, _log, _odd_path, _record,
    _nested, _key, _dataset, _pack, _checkpoint, _legacy, _odd_path, _config,
    _environment, _run_folder,
)  # fmt: skip


# Sound inputs


def _sound_record(folder: Path) -> bytes:
    from pitstop_probe import Clock, RecordWriter

    path = folder / "run" / "rank-0.jsonl"
    path.parent.mkdir()
    writer = RecordWriter(str(path), {"name": f"night {SCRIPT}", "total_steps": 600})
    clock = Clock(writer)
    for step in range(600):
        clock.begin_step(step)
        with clock.span("data"):
            pass
        with clock.span(f"forward {SCRIPT}"), clock.span("inner"):
            pass
        clock.count(samples=4, micro_steps=1)
        if step % 50 == 0:
            writer.scalars(step, {"loss": 1.0 / (step + 1), "eval/psnr": 30.0})
            writer.reading("saved", {"step": step, "path": f"x{ESCAPE}"})
    clock.close()
    writer.close("failed", f"because {ESCAPE} {SCRIPT}")
    return path.read_bytes()


def _make_data(kitchen: Kitchen) -> None:
    """Make a tiny dataset, its pack and a checkpoint, each by its own command."""
    log = kitchen.sound / "make.log"
    small = ["--train-clips", "1", "--test-clips", "1", "--frames", "2", "--size", "16x32"]
    config = kitchen.sound / "line.yaml"
    config.write_text(CONFIG % {"steps": 12})
    for arguments in (
        ["data", "make", "deblur", str(kitchen.clips), *small],
        ["data", "pack", str(kitchen.clips), "--output", str(kitchen.pack)],
        ["train", str(config), "--work-dir", str(kitchen.sound / "w"), "loader.workers=0"],
    ):
        life = begin(arguments, log)
        assert life.wait(600), "making sound inputs took ten minutes"
        assert life.code == 0, life.text
    kitchen.checkpoint = next((kitchen.sound / "w" / "run" / "checkpoints").glob("save-*"))


def _planted_state(kitchen: Kitchen, data: bytes) -> bytes:
    """Give what torch might unpickle: a program, another state, damage."""
    import pickle

    import torch

    class Program:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch OWNED",)

    what = kitchen.dice.randrange(4)
    if what == 0:
        return pickle.dumps(Program())
    buffer = BytesIO()
    if what == 1:
        torch.save({"model": Program()}, buffer)
        return buffer.getvalue()
    if what == 2:
        state = torch.load(BytesIO(data), weights_only=True)
        torch.save(kitchen.value_like(state), buffer)
        return buffer.getvalue()
    return kitchen.bytes_like(data)


def _huge_png(side: int) -> bytes:
    chunks = {b"IHDR": struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0), b"IDAT": b"x"}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks.items()
    )


def _other_picture(kitchen: Kitchen) -> bytes:
    """Pictures of kinds and modes that a frame does not have."""
    if kitchen.dice.random() < 0.3:
        return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    mode = kitchen.dice.choice(["1", "L", "P", "RGBA", "CMYK", "I;16", "F"])
    kind = {"CMYK": "JPEG", "F": "TIFF"}.get(mode, "PNG")
    buffer = BytesIO()
    Image.new(mode, (kitchen.dice.randint(1, 40), kitchen.dice.randint(1, 40))).save(buffer, kind)
    return kitchen.bytes_like(buffer.getvalue())


def _is_old(path: Path) -> bool:
    return (
        path.is_file()
        and path.suffix in (".py", ".json", ".yaml", ".yml", ".toml")
        and ("configs" in path.parts or "_base_" in path.parts)
    )


def _is_log(path: Path) -> bool:
    return (
        path.is_file() and not path.name.endswith(".facts.json") and path.stat().st_size < 200_000
    )


def _keys(schema: dict[str, Any]) -> Iterator[str]:
    """List every key of the configuration, with its section."""
    definitions = schema.get("$defs", {})

    def walk(node: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
        for name, each in node.get("properties", {}).items():
            yield ".".join((*path, name))
            reference = each.get("$ref") or next(
                (one["$ref"] for one in each.get("allOf", ()) if "$ref" in one), None
            )
            if reference and len(path) < 4:
                yield from walk(definitions[reference.rpartition("/")[2]], (*path, name))

    return walk(schema, ())
