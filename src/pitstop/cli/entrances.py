"""What was meant where a command does not stand as ``pitstop doctor -- python train.py``.

A new user leaves out the dashes, the interpreter, or both. What was typed tells what was meant, so
the answer is the whole line to type, with the arguments that were given.
"""

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pitstop.errors import PitstopError

_INTERPRETERS: Final = {".py": "python", ".sh": "bash", ".bash": "bash"}
# Known by name, for they may not be installed where the doctor runs.
_LAUNCHERS: Final = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|lightning|uv|conda|env")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_BOTTLENECK: Final = "torch.utils.bottleneck"


def refuse_without_dashes(
    args: Sequence[str], takes_value: Mapping[str, bool], *, of: str = "doctor"
) -> None:
    """Refuse a command that stands where runs and logs stand, and say what was meant.

    Args:
        args: All that followed ``pitstop doctor``.
        takes_value: The doctor's own options, and whether each takes a value.
        of: Our command, where it is another than the doctor.

    Raises:
        PitstopError: The first of them that is no option is a command.
    """
    start = _first_target(args, takes_value)
    if start is None or not is_command(args[start]):
        return
    own, command = args[:start], [word for word in args[start:] if word != "--"]
    known = [word for word in command[1:] if word.partition("=")[0] in takes_value]
    aside = ""
    if known:
        names = ", ".join(dict.fromkeys(word.partition("=")[0] for word in known))
        aside = f"; {names} then goes to the command; put options of pitstop before --"
    missing = _missing(command[0]) if Path(command[0]).suffix in _INTERPRETERS else ""
    meant = _did_you_mean(own, command, of=of)
    raise PitstopError(f"put the command after --; {meant}{missing}{aside}")


def refuse_unrunnable(own: Sequence[str], command: Sequence[str], *, of: str = "doctor") -> None:
    """Refuse a command that cannot run as it stands, or that would measure another profiler.

    Such are a script without its interpreter, an assignment that only a shell understands, and
    torch's former profiler, which old guides put before the script.

    Args:
        own: Options of pitstop's command.
        command: What followed ``--``.
        of: Our command, where it is another than the doctor.

    Raises:
        PitstopError: The command cannot be measured as it stands, and what was meant is known.
    """
    first = command[0]
    if list(command[1:3]) == ["-m", _BOTTLENECK] and len(command) > 3:
        meant = _did_you_mean(own, [first, *command[3:]], of=of)
        raise PitstopError(
            f"{_BOTTLENECK} is a profiler itself, and newer versions of torch do not have it; "
            f"{meant}"
        )
    if _ASSIGNMENT.fullmatch(first) and shutil.which(first) is None:
        name = first.partition("=")[0]
        meant = _did_you_mean(own, command, of=of)
        raise PitstopError(f"{name}=... before a command works in a shell only; {meant}")
    if Path(first).suffix in _INTERPRETERS and not _runs_by_itself(first):
        raise PitstopError(
            f"{first!r} does not run by itself; "
            f"{_did_you_mean(own, command, of=of)}{_missing(first)}"
        )


def _did_you_mean(own: Sequence[str], command: Sequence[str], *, of: str) -> str:
    from pitstop_probe.masking import MASK, mask_command

    interpreter = _INTERPRETERS.get(Path(command[0]).suffix)
    if interpreter is not None:
        command = [interpreter, *command]
    elif _ASSIGNMENT.fullmatch(command[0]):
        command = ["env", *command]
    shown = mask_command(["pitstop", of, *own, "--", *command])
    hidden = f" ({MASK} stands for what you typed)" if MASK in " ".join(shown) else ""
    return f"did you mean: {shlex.join(shown)}{hidden}"


def _missing(name: str) -> str:
    return "" if Path(name).exists() else f" (there is no file {name!r} here)"


def _first_target(args: Sequence[str], takes_value: Mapping[str, bool]) -> int | None:
    """Find the first argument that is neither an option of the doctor nor an option's value."""
    place = 0
    while place < len(args):
        name, is_assigned, _ = args[place].partition("=")
        if name == "--":
            return None
        if not name.startswith("-") or name == "-":
            return place
        place += 2 if takes_value.get(name, False) and not is_assigned else 1
    return None


def is_command(word: str) -> bool:
    """Tell whether a word is what one runs: a script, an interpreter or a launcher."""
    try:
        return _names_command(word)
    except (OSError, ValueError):  # no path at all, such as one that is too long
        return False


def _names_command(word: str) -> bool:
    path = Path(word)
    if path.suffix in _INTERPRETERS:
        return not path.is_dir()
    if path.exists():
        return path.is_file() and os.access(path, os.X_OK) and _has_interpreter_line(path)
    if os.sep in word:
        return False
    return bool(_LAUNCHERS.fullmatch(word) or _ASSIGNMENT.fullmatch(word) or shutil.which(word))


def _runs_by_itself(name: str) -> bool:
    found = shutil.which(name)
    return found is not None and _has_interpreter_line(Path(found))


def _has_interpreter_line(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
