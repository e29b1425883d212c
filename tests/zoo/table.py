"""The tables of the zoo: which scripts, how they are run, and what is true of them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
OURS = HERE / "ours.toml"
PUBLIC = HERE / "public.toml"
STANDINS = HERE / "standins"

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One script."""

    name: str
    script: str
    """Path, from the folder that the row runs in unless ``folder`` says otherwise."""
    args: tuple[str, ...] = ()
    cuda_args: tuple[str, ...] | None = None
    """Arguments on a GPU, where they differ."""
    devices: tuple[Device, ...] = ("cpu",)
    repository: str = ""
    """Owner and name of a public one; empty for ours."""
    commit: str = ""
    family: str = ""
    folder: str = "."
    """Working directory, inside the checkout or the folder of our scripts."""
    env: Mapping[str, str] = field(default_factory=dict)
    cuda_env: Mapping[str, str] = field(default_factory=dict)
    """What is different on a GPU."""
    cuda_steps: int | None = None
    python_path: tuple[str, ...] = ()
    """Folders to import from, inside the checkout."""
    standins: bool = True
    """Whether packages that cannot be had are replaced; not where one in between looks for them."""
    needs: tuple[str, ...] = ()
    """Versions that the interpreter of the scripts must have, where others do not do."""
    data: tuple[str, ...] = ()
    """Generated data: kind and path, as ``generate`` takes them."""
    launcher: tuple[str, ...] = ()
    """Words between the interpreter and the script."""
    steps: int | None = None
    """True number of optimizer steps."""
    steps_pattern: str = ""
    """Finds the number of steps in the output: the last match counts."""
    losses: str = r"(?i)loss[^0-9\n-]{0,16}(-?\d+\.\d+(?:e[-+]?\d+)?)"
    """Finds losses in the output."""
    unordered: bool = False
    """Whether several ranks print, as they come."""
    timed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Functions for the stopwatch by part, as ``function`` or ``module:Class.method``."""
    stopwatch: bool = False
    shares: Mapping[str, str] = field(default_factory=dict)
    """Patterns that find a share in percent in the script's own output, by part."""
    first: tuple[str, ...] = ()
    """Codes of which one may stand first; ``healthy`` where nothing may be found."""
    first_default: tuple[str, ...] = ()
    """The same for the run that ends after the default number of steps, where that sees less."""
    open: Mapping[str, str] = field(default_factory=dict)
    """What the doctor still gets wrong (steps, parts, first), and why."""
    limit_s: float = 180.0

    def words(self, device: Device) -> tuple[str, ...]:
        """Launcher, script and arguments."""
        args = self.args if device == "cpu" or self.cuda_args is None else self.cuda_args
        return (*self.launcher, self.script, *args)

    def working_folder(self, public: Path | None) -> Path:
        """Where the row runs."""
        if not self.repository:
            return HERE / self.folder
        if public is None:
            raise ValueError(f"{self.name}: name the folder of the public checkouts")
        return public / self.repository.replace("/", "+") / self.folder


def read_table(path: Path) -> tuple[Row, ...]:
    """Rows of a table, in its order."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(_row(entry) for entry in raw["script"])


def _row(entry: Mapping[str, Any]) -> Row:
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, list):
            values[key] = tuple(value)
        elif key == "timed":
            values[key] = {part: tuple(names) for part, names in value.items()}
        else:
            values[key] = value
    return Row(**values)


def chosen(rows: tuple[Row, ...], only: list[str], device: Device) -> list[Row]:
    """Rows for a device, by parts of their names.

    Raises:
        ValueError: A part is in no name.
    """
    for word in only:
        if not any(word in row.name for row in rows):
            raise ValueError(f"no script has {word!r} in its name")
    return [
        row
        for row in rows
        if device in row.devices and (not only or any(word in row.name for word in only))
    ]
