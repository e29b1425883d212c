"""Pins what set-up installs, and checks that the pins can be had from the package index alone.

    python scripts/lock.py               write constraints.txt (pins that still hold are kept)
    python scripts/lock.py --upgrade     the same, with the newest versions
    python scripts/lock.py --check       resolve every extra on every Python, with and without pins

Only metadata is fetched. Local wheel folders and the settings of pip and uv are switched off: what
lies on one machine must not hide what everybody else meets. Needs uv beside the interpreter.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
CHOSEN = "constraints.in"
PINS = "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")
HEADER = (
    "# Written by `make lock` from pyproject.toml and constraints.in; `make check` resolves it.\n"
)
# uv prints what leads to a conflict; more of it than this nobody reads in a terminal.
MOST_LINES_OF_CAUSE = 12


class Case(NamedTuple):
    """One installation that somebody could ask for."""

    python: str
    extras: tuple[str, ...]
    pinned: bool

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        pins = f"{'with' if self.pinned else 'without'} {PINS}"
        return f"pitstop{extras} on Python {self.python}, {pins}"


def main() -> int:
    """Do what the command line asks for; 1 where something does not resolve."""
    parser = ArgumentParser(description="Pins what set-up installs.")
    parser.add_argument("--check", action="store_true", help="change nothing, resolve everything")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    options = parser.parse_args()
    if options.check:
        return check()
    problem = write_pins(ROOT / PINS, upgrade=options.upgrade)
    if problem is not None:
        print(f"{PINS} was not written: {problem}")
    return int(problem is not None)


def check() -> int:
    """Resolve every case, and see that the pins are what `make lock` would write."""
    cases = all_cases()
    with ThreadPoolExecutor(4) as pool:
        causes = dict(zip(cases, pool.map(resolve, cases), strict=True))
    failed = [case for case, cause in causes.items() if cause is not None]
    if failed:
        print(f"{len(failed)} of {len(cases)} installations do not resolve, the first of them")
        print(f"{failed[0]}:\n{causes[failed[0]]}")
        return 1
    problem = stale_pins()
    print(problem or f"{len(cases)} installations resolve from the package index alone")
    return int(problem is not None)


def all_cases() -> list[Case]:
    """Nothing extra, every extra alone, and all of them; on every Python, pinned or not."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    chosen = [(), *((name,) for name in extras), tuple(extras)]
    return [Case(*case) for case in product(PYTHONS, chosen, (True, False))]


def resolve(case: Case) -> str | None:
    """Say why an installation cannot be had; None where it can."""
    extras = [word for name in case.extras for word in ("--extra", name)]
    pins = ["--constraints", PINS] if case.pinned else []
    return uv_compile("--python-version", case.python, *extras, *pins)


def stale_pins() -> str | None:
    """Say so where `make lock` would write other pins than there are."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder, PINS)
        copyfile(ROOT / PINS, fresh)
        problem = write_pins(fresh)
        is_same = fresh.read_text() == (ROOT / PINS).read_text()
    if problem is not None:
        return f"{PINS} cannot be made: {problem}"
    return None if is_same else f"{PINS} is not what pyproject.toml asks for: run `make lock`"


def write_pins(path: Path, *, upgrade: bool = False) -> str | None:
    """Write the pins of everything, for all Pythons at once; say why where that fails."""
    arguments = ["--universal", "--all-extras", "--python-version", PYTHONS[0], "--no-annotate"]
    arguments += ["--constraints", CHOSEN, "--output-file", str(path)]
    problem = uv_compile(*arguments, *(["--upgrade"] if upgrade else []))
    if problem is None:
        path.write_text(HEADER + path.read_text())
    return problem


def uv_compile(*arguments: str) -> str | None:
    """Resolve pyproject.toml from the package index alone; say why where it does not."""
    command = [UV, "pip", "compile", "pyproject.toml", "--no-config", "--no-header", "--no-build"]
    command += ["--system-certs", "--no-python-downloads", "--quiet", *arguments]
    local = ("UV_", "PIP_")
    environment = {name: os.environ[name] for name in os.environ if not name.startswith(local)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    return "\n".join(done.stderr.strip().splitlines()[:MOST_LINES_OF_CAUSE])


if __name__ == "__main__":
    sys.exit(main())
