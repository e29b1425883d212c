"""The lines to change as changed source: what a person would write at the places that were found.

Only simple statements are written anew, in the place where they stand. What cannot be written so,
such as a loader built in the head of a loop, is left to the person and named.
"""

import ast
import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pitstop.records.tuning.script import ScriptSeen
from pitstop.records.tuning.study import CodePlace, Tuning
from pitstop.tune.script.interventions import EIGHT_BIT, ENVIRONMENT

_LOADER: Final = {
    "loader.workers": "num_workers",
    "loader.prefetch": "prefetch_factor",
    "loader.persistent": "persistent_workers",
    "loader.pin": "pin_memory",
}
_LAST: Final = "memory_format=torch.channels_last"
_RESULT: Final = "prediction"
_WAYS: Final = ("fused", "foreach")
_SIMPLE: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


class CannotWrite(Exception):  # noqa: N818 - not an error: the person writes it
    """A change has no simple statement to stand in."""


@dataclass(slots=True, kw_only=True)
class _Statement:
    """A statement to be written anew, and what comes around it."""

    node: ast.stmt
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    cast: str | None = None
    """Device of the autocast that the model is called in."""
    call: ast.Call | None = None
    """That of the model."""


class SourceEdits:
    """Changes of one file, gathered and then written.

    Args:
        source: Text of the file.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._tree = ast.parse(source)
        self._parents = {
            child: parent for parent in ast.walk(self._tree) for child in ast.iter_child_nodes(parent)
        }
        self._statements: dict[ast.stmt, _Statement] = {}

    def keywords(self, line: int, name: str, given: dict[str, str]) -> None:
        """Give a call of `name` on a line other keyword arguments."""
        for call in self._calls(line, lambda called: called.rpartition(".")[2] == name):
            if set(given) & set(_WAYS):  # they exclude each other
                call.keywords = [each for each in call.keywords if each.arg not in _WAYS]
            _give(call, given)

    def rename(self, line: int, name: str, new: str, package: str) -> None:
        """Call another class of another package."""
        for call in self._calls(line, lambda called: called.rpartition(".")[2] == name):
            call.func = ast.parse(f"{package}.{new}", mode="eval").body
            call.keywords = [each for each in call.keywords if each.arg not in _WAYS]
        self.after_import([f"import {package}"])

    def before(self, line: int, text: str) -> None:
        """Put a line before the statement on a line."""
        self._statement(self._node_at(line)).before.append(text)

    def after_import(self, lines: Sequence[str]) -> None:
        """Put lines behind the first import of torch on the top level."""
        for node in self._tree.body:
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            if is_import and "torch" in ast.unparse(node):
                self._statement(node).after.extend(lines)
                return
        raise CannotWrite("no import of torch")

    def first_argument(self, line: int, name: str, value: str) -> None:
        """Give a call another first argument."""
        for call in self._calls(line, lambda called: called.endswith(name)):
            call.args[:1] = [ast.parse(value, mode="eval").body]

    def autocast(self, line: int, model: str, device: str) -> None:
        """Call a model inside autocast, its result in float32."""
        [call, *_] = self._calls(line, lambda called: called == model)
        statement = self._statement(self._statement_of(call))
        statement.cast, statement.call = device, call

    def channels_last(self, line: int, model: str) -> None:
        """Give a model its input in another layout."""
        for call in self._calls(line, lambda called: called == model):
            argument = ast.unparse(call.args[0])
            changed = f"{argument}.contiguous({_LAST})"
            call.args[0] = ast.parse(changed, mode="eval").body

    def text(self) -> str:
        """Write the file with all changes in it."""
        lines = self._source.splitlines()
        by_line: dict[int, list[ast.stmt]] = {}
        for node in self._statements:
            together = self._sharing(node)
            by_line[together[0].lineno] = together
        for first in sorted(by_line, reverse=True):
            together = by_line[first]
            indent = " " * together[0].col_offset
            new = [indent + line for node in together for line in self._written(node)]
            lines[first - 1 : together[-1].end_lineno] = new
        return "\n".join(lines) + "\n"

    def _written(self, node: ast.stmt) -> list[str]:
        statement = self._statements.get(node)
        if statement is None:
            return ast.unparse(node).splitlines()
        body = self._cast(statement) if statement.cast else ast.unparse(node).splitlines()
        return [*statement.before, *body, *statement.after]

    def _cast(self, statement: _Statement) -> list[str]:
        """Write the call of the model by itself: what else the statement does stays in float32."""
        call, node = statement.call, statement.node
        assert call is not None
        head = f'with torch.autocast("{statement.cast}", dtype=torch.bfloat16):'
        targets = node.targets if isinstance(node, ast.Assign) else []
        if targets and node.value is call:  # pyright: ignore[reportAttributeAccessIssue]
            target = targets[0]
            if isinstance(target, ast.Tuple):
                value = f"(each.float() for each in {ast.unparse(call)})"
            else:
                value = f"{ast.unparse(call)}.float()"
            return [head, f"    {ast.unparse(target)} = {value}"]
        first = f"    {_RESULT} = {ast.unparse(call)}.float()"
        _replace(node, call, ast.Name(id=_RESULT, ctx=ast.Load()))
        return [head, first, *ast.unparse(node).splitlines()]

    def _calls(self, line: int, is_meant: Callable[[str], bool]) -> list[ast.Call]:
        found = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or line)
            if is_meant(ast.unparse(node.func))
        ]
        if not found:
            raise CannotWrite(f"no such call in line {line}")
        for call in found:
            self._statement(self._statement_of(call))
        return found

    def _statement(self, node: ast.stmt) -> _Statement:
        return self._statements.setdefault(node, _Statement(node=node))

    def _statement_of(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        if not isinstance(node, _SIMPLE):
            raise CannotWrite(f"line {node.lineno} is the head of a block")
        return node

    def _node_at(self, line: int) -> ast.stmt:
        found = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, _SIMPLE) and node.lineno <= line <= (node.end_lineno or line)
        ]
        if not found:
            raise CannotWrite(f"line {line} is the head of a block")
        return found[0]

    def _sharing(self, node: ast.stmt) -> list[ast.stmt]:
        """Give the statements on the lines of one, which are written together."""
        parent = self._parents[node]
        bodies = [value for _, value in ast.iter_fields(parent) if isinstance(value, list)]
        [body] = [each for each in bodies if node in each]
        first, last = node.lineno, node.end_lineno or node.lineno
        found = [each for each in body if each.lineno <= last and (each.end_lineno or 0) >= first]
        if getattr(parent, "lineno", 0) == first:
            raise CannotWrite(f"line {first} is the head of a block, too")
        return found


def _replace(node: ast.AST, old: ast.AST, new: ast.expr) -> None:
    for parent in ast.walk(node):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(each is old for each in value):
                value[:] = [new if each is old else each for each in value]


def _give(call: ast.Call, given: dict[str, str]) -> None:
    """Set keyword arguments; those of a dictionary that is handed on are laid over it."""
    values = {name: ast.parse(text, mode="eval").body for name, text in given.items()}
    handed_on = [each for each in call.keywords if each.arg is None]
    kept = [each for each in call.keywords if each.arg not in given]
    if not handed_on:
        new = [ast.keyword(arg=name, value=value) for name, value in values.items()]
        call.keywords = [*kept, *new]
        return
    laid = handed_on[0].value
    if not isinstance(laid, ast.Dict):
        laid = ast.Dict(keys=[None], values=[laid])
    laid.keys += [ast.Constant(name) for name in values]
    laid.values += values.values()
    kept = [each for each in kept if each is not handed_on[0]]
    call.keywords = [*kept, ast.keyword(arg=None, value=laid)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """Changed files, and what is left to the person."""

    before: dict[Path, str]
    after: dict[Path, str]
    left: tuple[str, ...]

    def diff(self) -> str:
        """Give all changes as one unified diff."""
        parts: list[str] = []
        for path, text in self.after.items():
            old, new = self.before[path].splitlines(keepends=True), text.splitlines(keepends=True)
            parts += difflib.unified_diff(old, new, str(path), str(path))
        return "".join(parts)


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
        try:
            after = _apply([*done, word], places, seen, script, before)
        except (CannotWrite, OSError, SyntaxError, ValueError) as error:
            left.append(f"{word}: {error}")
        else:
            done.append(word)
    return Edited(before=before, after=after, left=tuple(left))


def _apply(
    words: Sequence[str],
    places: Sequence[CodePlace],
    seen: ScriptSeen,
    script: Path | None,
    before: dict[Path, str],
) -> dict[Path, str]:
    """Write changes into fresh copies: one that cannot be written leaves none half done."""
    files: dict[Path, SourceEdits] = {}

    def edits(path: Path) -> SourceEdits:
        if path not in before:
            before[path] = path.read_text(encoding="utf-8")
        if path not in files:
            files[path] = SourceEdits(before[path])
        return files[path]

    for word in words:
        own = [each for each in places if each.change == word and each.place]
        _write(word, own, seen, script, edits)
    return {path: each.text() for path, each in files.items()}


def _write(
    word: str,
    places: Sequence[CodePlace],
    seen: ScriptSeen,
    script: Path | None,
    edits: Callable[[Path], SourceEdits],
) -> None:
    key, _, value = word.partition("=")
    if key in _GLOBAL:
        _write_global(word, places, script, edits)
        return
    if key == "compile":
        for path, line, model in _models(seen):
            edits(path).before(line, f"{model}.compile()")
        return
    if key == "channels_last":
        for path, line, model in _models(seen):
            edits(path).before(line, f"{model}.to({_LAST})")
    if not places:
        raise CannotWrite("its place is not known")
    for each in places:
        path, line = _place(each.place)
        model = _model_called(each.name, seen)
        if key in _LOADER:
            literal = value if value.isdigit() else value.capitalize()
            edits(path).keywords(line, "DataLoader", {_LOADER[key]: literal})
        elif value == EIGHT_BIT:
            package = next(site.eight_bit for site in seen.optimizers if site.eight_bit)
            edits(path).rename(line, each.name, f"{each.name}8bit", f"{package}.optim")
        elif key == "optimizer":
            edits(path).keywords(line, each.name, {value: "True"})
        elif key == "autocast":
            edits(path).autocast(line, model, "cuda" if seen.on_gpu else "cpu")
        elif key == "channels_last":
            edits(path).channels_last(line, model)
        elif key == "anomaly_detection":
            edits(path).first_argument(line, "set_detect_anomaly", "False")
        elif key == "non_blocking":
            edits(path).keywords(line, "to", {"non_blocking": "True"})
        else:
            raise CannotWrite("there is no rule for it")


_GLOBAL: Final = {
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    "threads": "torch.set_num_threads({value})",
}


def _write_global(
    word: str,
    places: Sequence[CodePlace],
    script: Path | None,
    edits: Callable[[Path], SourceEdits],
) -> None:
    """Write a setting of torch as a whole: where the script sets it, or behind its import."""
    key, _, value = word.partition("=")
    own = [each for each in places if each.name == "torch.set_num_threads"]
    for each in own:
        path, line = _place(each.place)
        edits(path).first_argument(line, "set_num_threads", value)
    if own:
        return
    if script is None:
        raise CannotWrite("the script is not known")
    edits(script).after_import([_GLOBAL[key].format(value=value)])


def _models(seen: ScriptSeen) -> Iterator[tuple[Path, int, str]]:
    for site in seen.models:
        if site.name == site.class_name:
            raise CannotWrite("the model has no name there")
        yield (*_place(site.place), site.name)


def _model_called(class_name: str, seen: ScriptSeen) -> str:
    return next((site.name for site in seen.models if site.class_name == class_name), class_name)


def _place(text: str) -> tuple[Path, int]:
    path, _, line = text.rpartition(":")
    return Path(path), int(line)
