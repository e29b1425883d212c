"""Configurations written as Python, read as text: assignments of literals, and nothing else.

Understood are numbers, text, None, lists, tuples, dicts, ``dict(...)``, names assigned before, and
plain arithmetic on numbers. Everything else is kept as the text it is, and never executed.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from pitstop.errors import ConfigError


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


def read_python(text: str, source: str) -> dict[str, Any]:
    """Read what a configuration file assigns, by name; other statements by their line.

    Raises:
        ConfigError: When it is no Python.
    """
    try:
        tree = ast.parse(text)
        return dict(_assignments(tree, text))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{source} is not readable as Python: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError(f"{source} is nested too deeply to be read") from error


def _assignments(tree: ast.Module, text: str) -> Iterator[tuple[str, Any]]:
    known: dict[str, Any] = {}
    for statement in tree.body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                known[name] = _value(expression, known, text)
                yield name, known[name]
            case _:
                yield f"line {statement.lineno}", Code(_written(statement, text))


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
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=sign, operand=inner) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_number(inner, known))
        case ast.BinOp(op=sign, left=left, right=right) if type(sign) in _SUMS:
            return _SUMS[type(sign)](_number(left, known), _number(right, known))
        case _:
            raise _NoLiteralError


def _number(node: ast.expr, known: Mapping[str, Any]) -> int | float:
    value = _scalar(node, known)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NoLiteralError
    return value


def _written(node: ast.AST, text: str) -> str:
    return " ".join((ast.get_source_segment(text, node) or "").split())
