"""Configurations written as Python, read as text: assignments of literals, and nothing else.

Understood are numbers, text, None, lists, tuples, dicts, ``dict(...)``, names assigned before,
plain arithmetic on numbers, items set by name (``data["workers"] = 2``), and classes whose fields
have such defaults. Everything else is kept as the text it is, and never executed.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pitstop.errors import ConfigError

BASE: Final = "_base_"
_MAX_DEPTH: Final = 60
_MAX_NODES: Final = 200_000


class Code(str):
    """An expression that is no literal, as it was written."""

    __slots__ = ()


_SIGNS: Final[Mapping[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_SUMS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class _NoLiteralError(Exception):
    """An expression is more than a literal."""


@dataclass(slots=True, kw_only=True)
class PythonFile:
    """What one file says.

    Attributes:
        values: What it assigns, by name; other statements by their line.
        lines: The line of each name and of each key below it, by path.
        classes: Fields with defaults, by class.
    """

    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    classes: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_module(text: str, source: str, bases: Mapping[str, Any] | None = None) -> PythonFile:
    """Read a file; `bases` is what its bases say, which it may name as ``_base_.key``.

    Raises:
        ConfigError: When it is no Python, with the line.
    """
    try:
        tree = ast.parse(text)
        _refuse_too_much(tree, source)
        return _Module(text, bases or {}).read(tree)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error)
        raise ConfigError(f"{source}:{line}: is not readable as Python: {reason}") from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError(f"{source}:1: is nested too deeply to be read") from error


def _refuse_too_much(tree: ast.Module, source: str) -> None:
    level: list[ast.AST] = [tree]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > _MAX_NODES or depth > _MAX_DEPTH:
            line = getattr(level[0], "lineno", 1)
            raise ConfigError(f"{source}:{line}: is nested too deeply, or too long, to be read")
        level = [child for node in level for child in ast.iter_child_nodes(node)]


class _Module:
    """Goes through the statements of a file in order."""

    def __init__(self, text: str, bases: Mapping[str, Any]) -> None:
        self._text = text
        self._known: dict[str, Any] = {BASE: dict(bases)}
        self._file = PythonFile()

    def read(self, tree: ast.Module) -> PythonFile:
        for statement in tree.body:
            self._statement(statement)
        return self._file

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                self._assign(name, expression)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as expression):
                self._assign(name, expression)
            case ast.Assign(targets=[ast.Subscript() as target], value=expression):
                self._set_item(target, expression, statement)
            case ast.ClassDef(name=name, body=body):
                self._file.classes[name] = self._fields(name, body)
            case _:
                self._leave(statement)

    def _assign(self, name: str, expression: ast.expr) -> None:
        value = _value(expression, self._known, self._text)
        if name != BASE:
            self._known[name] = value
        self._file.values[name] = value
        self._file.lines |= dict(_lines(expression, name, expression.lineno))

    def _set_item(self, target: ast.Subscript, value: ast.expr, statement: ast.stmt) -> None:
        path = _item_path(target)
        group: Any = self._file.values
        for name in path[:-1]:
            group = group.get(name) if isinstance(group, dict) else None
        if not path or not isinstance(group, dict):
            self._leave(statement)
            return
        group[path[-1]] = _value(value, self._known, self._text)
        self._file.lines[".".join(path)] = statement.lineno

    def _leave(self, statement: ast.stmt) -> None:
        name = f"line {statement.lineno}"
        self._file.values[name] = Code(_written(statement, self._text))
        self._file.lines[name] = statement.lineno

    def _fields(self, owner: str, body: list[ast.stmt]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for statement in body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as expression):
                    fields[name] = self._default(expression)
                case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                    fields[name] = self._default(expression)
                case _:
                    continue
            self._file.lines[f"{owner}.{name}"] = statement.lineno
        return fields

    def _default(self, expression: ast.expr) -> Any:
        """Give the default of a field; ``field(default_factory=Group)`` is that group."""
        match expression:
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) | ast.Name(id=name) if (
                name in self._file.classes
            ):
                return self._file.classes[name]
            case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field"), keywords=words):
                given = {word.arg: word.value for word in words}
                factory = given.get("default_factory")
                inner = factory.body if isinstance(factory, ast.Lambda) else factory
                chosen = given.get("default") or inner
                return (
                    Code(_written(expression, self._text))
                    if chosen is None
                    else (self._default(chosen))
                )
            case _:
                return _value(expression, self._known, self._text)


def _lines(node: ast.expr, path: str, line: int) -> Iterable[tuple[str, int]]:
    """Give the line of a key, and of the keys of the dict that is its value."""
    yield path, line
    pairs: list[tuple[str, ast.expr]] = []
    match node:
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant):
                    pairs.append((str(key.value), value))
        case ast.Call(func=ast.Name(id="dict"), keywords=words):
            pairs = [(word.arg, word.value) for word in words if word.arg]
        case _:
            pass
    for name, value in pairs:
        yield from _lines(value, f"{path}.{name}", value.lineno)


def _item_path(target: ast.expr) -> tuple[str, ...]:
    match target:
        case ast.Name(id=name):
            return (name,)
        case ast.Subscript(value=outer, slice=ast.Constant(value=str() as name)):
            path = _item_path(outer)
            return (*path, name) if path else ()
        case _:
            return ()


def _value(node: ast.expr, known: Mapping[str, Any], text: str) -> Any:
    """Give a literal, with what is no literal kept as text where it stands."""
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, known, text) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return _joined(zip(keys, values, strict=True), known, text)
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words):
            names = [None if word.arg is None else ast.Constant(word.arg) for word in words]
            values = [word.value for word in words]
            return _joined(zip(names, values, strict=True), known, text)
        # mmcv replaces {{_base_.key}} before Python sees it.
        case ast.Set(elts=[ast.Set(elts=[inner])]):
            return _plain(inner, known, text)
        case _:
            return _plain(node, known, text)


def _plain(node: ast.expr, known: Mapping[str, Any], text: str) -> Any:
    try:
        return _scalar(node, known)
    except (_NoLiteralError, ArithmeticError):
        return Code(_written(node, text))


def _joined(
    pairs: Iterable[tuple[ast.expr | None, ast.expr]], known: Mapping[str, Any], text: str
) -> dict[str, Any]:
    """Make a dict; a part without a key is another dict, spread out."""
    made: dict[str, Any] = {}
    for key, node in pairs:
        value = _value(node, known, text)
        if key is not None:
            made[str(_value(key, known, text))] = value
        elif isinstance(value, dict):
            made |= value
        else:
            made[f"**{_written(node, text)}"] = Code(_written(node, text))
    return made


def _scalar(node: ast.expr, known: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value) if isinstance(value, str | int | float | None):
            return value
        case ast.Name(id=name) if name in known and name != BASE:
            return known[name]
        case ast.Attribute():
            return _of_base(node, known)
        case ast.UnaryOp(op=sign, operand=inner) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_number(inner, known))
        case ast.BinOp(op=sign, left=left, right=right) if type(sign) in _SUMS:
            return _SUMS[type(sign)](_number(left, known), _number(right, known))
        case _:
            raise _NoLiteralError


def _of_base(node: ast.expr, known: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name) if name == BASE:
            return known[BASE]
        case ast.Attribute(value=outer, attr=name):
            group = _of_base(outer, known)
            if isinstance(group, dict) and name in group:
                return group[name]
        case _:
            pass
    raise _NoLiteralError


def _number(node: ast.expr, known: Mapping[str, Any]) -> int | float:
    value = _scalar(node, known)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NoLiteralError
    return value


def _written(node: ast.AST, text: str) -> str:
    return " ".join((ast.get_source_segment(text, node) or "").split())
