"""Statements of a source file written anew in their places, the rest left as it stands.

Only simple statements can be written so; what stands in the head of a block is left to a person.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

LAST: Final = "memory_format=torch.channels_last"
_RESULT: Final = "prediction"
_WAYS: Final = ("fused", "foreach")
_SIMPLE: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
_IMPORTS: Final = (ast.Import, ast.ImportFrom)


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
            child: parent
            for parent in ast.walk(self._tree)
            for child in ast.iter_child_nodes(parent)
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
            is_import = isinstance(node, _IMPORTS)
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
            changed = f"{argument}.contiguous({LAST})"
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
