"""The lines to change as changed source: what a person would write at the places found."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Final

from pitstop.records.tuning.script import ScriptSeen
from pitstop.records.tuning.study import CodePlace, Tuning
from pitstop.tune.script.interventions import EIGHT_BIT, ENVIRONMENT
from pitstop.tune.script.source import LAST, CannotWrite, SourceEdits

_LOADER: Final[Mapping[str, str]] = {
    "loader.workers": "num_workers",
    "loader.prefetch": "prefetch_factor",
    "loader.persistent": "persistent_workers",
    "loader.pin": "pin_memory",
}
_GLOBAL: Final[Mapping[str, str]] = {
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    "threads": "torch.set_num_threads({value})",
}
_SETS_THREADS: Final = "torch.set_num_threads"
_NO_NEWLINE: Final = "\n\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """Changed files, and what is left to the person."""

    before: dict[Path, str]
    after: dict[Path, str]
    left: tuple[str, ...]

    def diff(self) -> str:
        """Give all changes as one unified diff, with paths from the current folder."""
        parts: list[str] = []
        here = Path.cwd()
        for path, text in self.after.items():
            # A stream knows no ends of lines but \n, as the programs that apply a diff.
            old, new = list(StringIO(self.before[path])), list(StringIO(text))
            name = path.relative_to(here) if path.is_relative_to(here) else path
            parts += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
        return "".join(part if part.endswith("\n") else f"{part}{_NO_NEWLINE}" for part in parts)


def edit_sources(tuning: Tuning, seen: ScriptSeen, script: Path | None) -> Edited:
    """Write the chosen changes into the text of their files.

    Args:
        tuning: The study; variables of the environment are no text and are left out.
        seen: The script, as it was seen.
        script: Takes what has no place of its own.
    """
    places = tuple(dict.fromkeys(place for trial in tuning.trials for place in trial.changed))
    before: dict[Path, str] = {}
    after: dict[Path, str] = {}
    left: list[str] = []
    done: list[str] = []
    for word in tuning.overrides:
        if word.startswith(ENVIRONMENT):
            continue
        # Into fresh copies: a change that cannot be written leaves none half done.
        writer = _Writer(places=places, seen=seen, script=script, before=before)
        try:
            after = writer.write([*done, word])
        except (CannotWrite, OSError, SyntaxError, ValueError) as error:
            left.append(f"{word}: {error}")
        else:
            done.append(word)
    return Edited(before=before, after=after, left=tuple(left))


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes changes into copies of the files that their places name."""

    places: Sequence[CodePlace]
    seen: ScriptSeen
    script: Path | None
    before: dict[Path, str]
    """Text of every file that was read."""
    files: dict[Path, SourceEdits] = field(default_factory=dict)

    def write(self, words: Sequence[str]) -> dict[Path, str]:
        """Write changes, and give the text of the changed files.

        Raises:
            CannotWrite: A person has to.
        """
        for word in words:
            self._write(word, [each for each in self.places if each.change == word and each.place])
        return {path: each.text() for path, each in self.files.items()}

    def _write(self, word: str, places: Sequence[CodePlace]) -> None:
        key = word.partition("=")[0]
        if key in _GLOBAL:
            self._everywhere(word, places)
            return
        if key in _BEFORE_OPTIMIZER:
            for path, line, model in self._models():
                text = _BEFORE_OPTIMIZER[key].format(
                    model=model, compile_call=self.seen.compile_call
                )
                self.edits(path).before(line, model, text)
        if key == "compile":
            return
        if not places:
            raise CannotWrite("its place is not known")
        for each in places:
            path, line = _place(each.place)
            _RULES[key](self, self.edits(path), line, each)

    def _everywhere(self, word: str, places: Sequence[CodePlace]) -> None:
        """Write a setting of torch as a whole: where the script sets it, or behind its import."""
        key, _, value = word.partition("=")
        own = [_place(each.place) for each in places if each.name == _SETS_THREADS]
        for path, line in own:
            self.edits(path).keywords(line, ("set_num_threads",), {"threads": value})
        if own:
            return
        if self.script is None:
            raise CannotWrite("the script is not known")
        self.edits(self.script).after_import([_GLOBAL[key].format(value=value)])

    def edits(self, path: Path) -> SourceEdits:
        """Give the changes of a file, which is read when it is first named."""
        if path not in self.before:
            self.before[path] = path.read_bytes().decode("utf-8")
        if path not in self.files:
            self.files[path] = SourceEdits(self.before[path])
        return self.files[path]

    def _models(self) -> Iterator[tuple[Path, int, str]]:
        for site in self.seen.models:
            if site.name == site.class_name:
                raise CannotWrite("the model has no name there")
            yield (*_place(site.place), site.name)


def _loader(__: _Writer, edits: SourceEdits, line: int, place: CodePlace) -> None:
    key, _, value = place.change.partition("=")
    literal = value if value.isdigit() else value.capitalize()
    edits.keywords(line, ("DataLoader",), {_LOADER[key]: literal})


def _optimizer(writer: _Writer, edits: SourceEdits, line: int, place: CodePlace) -> None:
    way = place.change.partition("=")[2]
    if way != EIGHT_BIT:
        edits.keywords(line, (place.name,), {way: "True"})
        return
    package = next(site.eight_bit for site in writer.seen.optimizers if site.eight_bit)
    edits.rename(line, place.name, f"{place.name}8bit", f"{package}.optim")


def _autocast(writer: _Writer, edits: SourceEdits, line: int, place: CodePlace) -> None:
    edits.autocast(line, writer.seen.models_called(place.name), writer.seen.device_kind)


def _channels_last(writer: _Writer, edits: SourceEdits, line: int, place: CodePlace) -> None:
    edits.channels_last(line, writer.seen.models_called(place.name))


def _anomaly_detection(_: _Writer, edits: SourceEdits, line: int, __: CodePlace) -> None:
    edits.keywords(line, ("set_detect_anomaly",), {"mode": "False"})


def _non_blocking(_: _Writer, edits: SourceEdits, line: int, __: CodePlace) -> None:
    edits.keywords(line, ("to", "cuda"), {"non_blocking": "True"})


_RULES: Final[Mapping[str, Callable[[_Writer, SourceEdits, int, CodePlace], None]]] = {
    **dict.fromkeys(_LOADER, _loader),
    "optimizer": _optimizer,
    "autocast": _autocast,
    "channels_last": _channels_last,
    "anomaly_detection": _anomaly_detection,
    "non_blocking": _non_blocking,
}
"""What is written at the place where a change took hold."""
_BEFORE_OPTIMIZER: Final[Mapping[str, str]] = {
    "compile": "{model}.{compile_call}",
    "channels_last": f"{{model}}.to({LAST})",
}
"""What is written before the line that builds the optimizer."""


def _place(text: str) -> tuple[Path, int]:
    path, _, line = text.rpartition(":")
    return Path(path), int(line)
