"""Makes the virtual environment that the Makefile's targets run in.

    python scripts/set_up.py .venv torch,train           what the demo needs
    python scripts/set_up.py .venv torch,train,dev,...   what else is named

Runs before anything is installed: standard library only. Says what it is about to fetch where that
is large, and why it failed in one message; pip's own output goes into setup.log.

TORCH_INDEX names another index to take torch from, for a build without CUDA. Postponed annotations
keep the file readable for Pythons that are too old, so that they get the message and no traceback.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST_PYTHON = (3, 11)
# Wheels of torch 2.13 and of the CUDA libraries that it asks for, and what they unpack to.
CUDA_BUILD = "2.8 GB to fetch, 5 GB on disk"
# Wheels from this size on are announced one by one, so that a slow line is seen to move.
LARGE_MB = 50

# What pip writes when it fails, most telling first, and what that means.
CAUSES = (
    (r"No space left on device", "the disk is full"),
    (r"CERTIFICATE_VERIFY_FAILED", "the package index's certificate is not trusted (set PIP_CERT)"),
    (
        r"Temporary failure in name resolution|Name or service not known|NewConnectionError"
        r"|ConnectTimeoutError|ReadTimeoutError|ProxyError|Network is unreachable",
        "the package index cannot be reached",
    ),
    (
        r"caused by:\n +The user requested .+\n +The user requested \(constraint\) (.+)\n\n",
        "the package index cannot be reached, or has no {}",
    ),
    (r"The conflict is caused by:\n((?: {4}.+\n?)+)", "the pinned versions exclude each other: {}"),
    (
        r"requirement (.+) \(from versions: none\)",
        "the package index cannot be reached, or has no {}",
    ),
    (r"(No matching distribution found for .+)", "{}"),
    (r"ERROR: (.+)", "{}"),
)


class SetUpError(Exception):
    """Set-up cannot go on; the text says why in one message."""


def main() -> int:
    """Set up; 1 where that fails, in one message."""
    folder, extras = Path(sys.argv[1]), sys.argv[2]
    began_s = time.monotonic()
    try:
        set_up(folder, extras)
    except SetUpError as failure:
        print(f"set-up failed: {failure}", file=sys.stderr)
        return 1
    print(f"set-up of {folder} took {time.monotonic() - began_s:.0f} s")
    return 0


def set_up(folder: Path, extras: str) -> None:
    """Make the environment where there is none, and install what is missing."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        raise SetUpError(
            f"pitstop needs Python 3.11 or newer, this is {version}; "
            "run: make PYTHON=/path/to/python3.11 ..."
        )
    if not (folder / "bin" / "python").exists():
        make_environment(folder)
    print(f"setting up {folder} (Python {version}) for pitstop[{extras}]", flush=True)
    torch_index = os.environ.get("TORCH_INDEX")
    if torch_index and not has_torch(folder):
        print(f"taking torch from {torch_index}", flush=True)
        where = ("--index-url", torch_index, "--no-deps")
        pip(folder, "install", "--constraint", "constraints.txt", *where, "torch")
    pip(folder, "install", "--constraint", "constraints.txt", "--editable", f".[{extras}]")


def make_environment(folder: Path) -> None:
    """Make an empty environment."""
    try:
        venv.create(folder, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetUpError(
            f"{sys.executable} cannot make a virtual environment ({error}); "
            "on Debian and Ubuntu: apt-get install python3-venv"
        ) from error


def has_torch(folder: Path) -> bool:
    """Whether the environment has torch already."""
    return any(folder.glob("lib/python*/site-packages/torch/version.py"))


def announcement(line: str) -> str | None:
    """What to say of a line that pip prints: wheels that take long to fetch, torch above all."""
    found = re.search(r"Downloading (?:\S+/)?(([A-Za-z0-9_.]+)-\S+\.whl)(?:\.metadata)? (.+)", line)
    if found is None:
        return None
    wheel, name, rest = found.groups()
    if name == "torch" and is_cuda_build(wheel):
        return (
            f"torch comes with CUDA: {CUDA_BUILD}, once. For a smaller build without CUDA stop "
            "here, remove the environment and name an index of CPU builds (pytorch.org has it): "
            "make ... TORCH_INDEX=..."
        )
    size = re.search(r"\(([0-9.]+) ([MG])B\)", rest)
    if size is None:
        return None
    size_mb = float(size.group(1)) * (1000 if size.group(2) == "G" else 1)
    return f"fetching {name}, {size_mb:.0f} MB" if size_mb >= LARGE_MB else None


def is_cuda_build(wheel: str) -> bool:
    """Whether a wheel of torch brings CUDA: on Linux all do that do not say otherwise."""
    return "linux" in wheel and "cpu" not in wheel


def pip(folder: Path, *arguments: str) -> None:
    """Run the environment's pip; what it prints goes into the log.

    Raises:
        SetUpError: When it fails.
    """
    python = folder.absolute() / "bin" / "python"
    command = [python, "-m", "pip", *arguments, "--disable-pip-version-check"]
    lines = ["$ pip " + " ".join(arguments) + "\n"]
    said: set[str] = set()
    with subprocess.Popen(
        [*command, "--progress-bar", "off"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            lines.append(line)
            text = announcement(line)
            if text is not None and text not in said:
                print(text, flush=True)
                said.add(text)
    log = folder / "setup.log"
    with log.open("a", encoding="utf-8") as file:
        file.writelines(lines)
    if process.returncode:
        raise SetUpError(f"{cause_of(''.join(lines))}; pip's own words are in {log}")


def cause_of(output: str) -> str:
    """Say in one message why pip failed."""
    for pattern, meaning in CAUSES:
        found = re.search(pattern, output)
        if found:
            words = " ".join(found.group(found.re.groups).split()) if found.re.groups else ""
            return meaning.format(words)
    return "pip failed without a reason"


if __name__ == "__main__":
    sys.exit(main())
