"""Statements of a source file written anew in their places, the rest left as it stands.

Only simple statements can be written so; what stands in the head of a block is left to a person.
"""

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

LAST: Final = "memory_format=torch.channels_last"
_RESULT: Final = "prediction"
_WAYS: Final = ("fused", "foreach")
_POSITIONS: Final[Mapping[str, int]] = {"num_workers": 5, "pin_memory": 7, "mode": 0, "threads": 0}
"""Places of arguments that a call may give without their names."""
_SIMPLE: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
_IMPORTS: Final = (ast.Import, ast.ImportFrom)
_SCOPES: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
_NOT_ALWAYS_ONCE: Final = (*_SCOPES, ast.IfExp, ast.BoolOp)
_OF_OUTPUTS: Final = ("loss", "logits", "last_hidden_state", "sample", "log_prob")
"""Attributes of a model's result that no tensor has."""
_PARTS: Final = (
    "(each.float() if getattr(each, 'dtype', None) == torch.bfloat16 else each for each in {call})"
)


class CannotWrite(Exception):  # noqa: N818 - not an error: the person writes it
    """A change has no simple statement to stand in."""


@dataclass(slots=True, kw_only=True)
class _Statement:
    """A statement to be written anew, and what comes around it."""

    node: ast.stmt
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    cast: str = ""
    """Device of the autocast that models are called in."""
    calls: dict[ast.Call, None] = field(default_factory=dict)
    """Those of models, of nested ones the inner first."""


class SourceEdits:
    """Changes of one file, gathered and then written.

    Args:
        source: Text of the file, with the ends of lines that it has.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._tree = ast.parse(source.removeprefix("\ufeff"))
        self._parents = {
            child: parent
            for parent in ast.walk(self._tree)
            for child in ast.iter_child_nodes(parent)
        }
        names = [each for each in ast.walk(self._tree) if isinstance(each, ast.Name)]
        self._names = {each.id for each in names}
        self._variables = {each.id for each in names if isinstance(each.ctx, ast.Store)}
        self._statements: dict[ast.stmt, _Statement] = {}
        self._arranged: set[ast.Call] = set()

    def keywords(self, line: int, names: Collection[str], given: dict[str, str]) -> None:
        """Give calls of `names` on a line other arguments."""
        for call in self._calls(line, lambda called: called.rpartition(".")[2] in names):
            if set(given) & set(_WAYS):  # they exclude each other
                call.keywords = [each for each in call.keywords if each.arg not in _WAYS]
            _give(call, given)

    def rename(self, line: int, name: str, new: str, package: str) -> None:
        """Call another class of another package."""
        for call in self._calls(line, lambda called: called.rpartition(".")[2] == name):
            call.func = ast.parse(f"{package}.{new}", mode="eval").body
            call.keywords = [each for each in call.keywords if each.arg not in _WAYS]
        self.after_import([f"import {package}"])

    def before(self, line: int, model: str, text: str) -> None:
        """Put a line about a model before the statement on a line."""
        node = self._node_at(line)
        scopes = (each for each in ast.walk(node) if isinstance(each, _SCOPES))
        if any(_binds(scope, model) for scope in scopes):
            raise CannotWrite(f"{model} has its name inside line {line} only")
        self._statement(node).before.append(text)

    def after_import(self, lines: Sequence[str] = ()) -> None:
        """Put lines behind the import of torch on the top level; where it lacks, it is added."""
        imports = [node for node in self._tree.body if isinstance(node, _IMPORTS)]
        if not imports:
            raise CannotWrite("the file imports nothing on its top level")
        named = [node for node in imports if _names_torch(node)]
        of_torch = [node for node in imports if "torch" in ast.unparse(node)]
        after = self._statement([*named, *of_torch, imports[-1]][0]).after
        if not named and not after:
            after.append("import torch")
        after.extend(lines)

    def autocast(self, line: int, models: Collection[str], device: str) -> None:
        """Call a model inside autocast wherever the file does, its result in float32."""
        self.after_import()
        for call in self._calls_of(line, models):
            if any(isinstance(each, _NOT_ALWAYS_ONCE) for each in self._above(call)):
                raise CannotWrite(f"line {call.lineno} calls the model in a part of an expression")
            if self._is_more_than_tensor(call):
                raise CannotWrite(f"in line {call.lineno} the model gives more than a tensor")
            statement = self._statement(self._statement_of(call))
            statement.cast = device
            statement.calls[call] = None

    def channels_last(self, line: int, models: Collection[str]) -> None:
        """Give a model its input in another layout wherever the file calls it."""
        self.after_import()
        for call in self._calls_of(line, models):
            if not call.args or isinstance(call.args[0], ast.Starred):
                called = f"{ast.unparse(call.func)} in line {call.lineno}"
                raise CannotWrite(f"the input of {called} has no place of its own")
            if call not in self._arranged:
                changed = f"{ast.unparse(call.args[0])}.contiguous({LAST})"
                call.args[0] = ast.parse(changed, mode="eval").body
                self._arranged.add(call)

    def text(self) -> str:
        """Write the file with all changes in it."""
        lines = self._source.split("\n")  # a form feed ends a line of str.splitlines, none of code
        end = "\r" if lines[0].endswith("\r") else ""
        by_line: dict[int, list[ast.stmt]] = {}
        for node in self._statements:
            together = self._sharing(node)
            by_line[together[0].lineno] = together
        for first in sorted(by_line, reverse=True):
            together, old = by_line[first], lines[first - 1]
            indent = old[: len(old) - len(old.lstrip(" \t"))]
            new = [f"{indent}{line}{end}" for node in together for line in self._written(node)]
            last = together[-1].end_lineno or first
            if last == len(lines):  # nothing ends the last line
                new[-1] = new[-1].removesuffix(end)
            lines[first - 1 : last] = new
        return "\n".join(lines)

    def _written(self, node: ast.stmt) -> list[str]:
        statement = self._statements.get(node)
        if statement is None:
            return ast.unparse(node).splitlines()
        body = self._cast(statement) if statement.cast else ast.unparse(node).splitlines()
        return [*statement.before, *body, *statement.after]

    def _cast(self, statement: _Statement) -> list[str]:
        """Write the calls of models by themselves: what else is done stays in float32."""
        node = statement.node
        lines = [f'with torch.autocast("{statement.cast}", dtype=torch.bfloat16):']
        if isinstance(node, ast.Assign) and node.value in statement.calls:
            is_divided = any(isinstance(each, ast.Tuple | ast.List) for each in node.targets)
            call = ast.unparse(node.value)
            value = _PARTS.format(call=call) if is_divided else f"{call}.float()"
            node.value = ast.parse(value, mode="eval").body
            return [*lines, f"    {ast.unparse(node)}"]
        for call in statement.calls:
            name = self._unused()
            lines.append(f"    {name} = {ast.unparse(call)}.float()")
            _replace(node, call, ast.Name(id=name, ctx=ast.Load()))
        return [*lines, *ast.unparse(node).splitlines()]

    def _unused(self) -> str:
        """Give a name that nothing in the file has."""
        names = (_RESULT, *(f"{_RESULT}_{count}" for count in range(2, len(self._names) + 3)))
        name = next(each for each in names if each not in self._names)
        self._names.add(name)
        return name

    def _above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Give what holds an expression, up to its statement."""
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
            yield node

    def _is_more_than_tensor(self, call: ast.Call) -> bool:
        """Whether what a call gives is used as no tensor can be."""
        parent = self._parents[call]
        targets = parent.targets if isinstance(parent, ast.Assign) else []
        names = {each.id for each in targets if isinstance(each, ast.Name)}
        for node in ast.walk(self._tree):
            value = getattr(node, "value", None)
            if value is not call and getattr(value, "id", None) not in names:
                continue
            if isinstance(node, ast.Starred) or getattr(node, "attr", None) in _OF_OUTPUTS:
                return True
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                return True
        return False

    def _calls(self, line: int | None, is_meant: Callable[[str], bool]) -> list[ast.Call]:
        """Give the calls of a line; without one, of the file."""
        found = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call)
            if line is None or node.lineno <= line <= (node.end_lineno or line)
            if is_meant(ast.unparse(node.func))
        ]
        if not found:
            raise CannotWrite(f"no such call in line {line}")
        for call in found:
            self._statement(self._statement_of(call))
        return found

    def _calls_of(self, line: int, models: Collection[str]) -> list[ast.Call]:
        """Give all calls of a model of which one is on a line: only its first one is noted."""
        try:
            found = self._calls(line, models.__contains__)
        except CannotWrite:
            # A model that builds its own optimizer has another name there: a variable's, if one.
            found = self._calls(line, self._variables.__contains__)
            if len(found) != 1:
                raise
        names = {ast.unparse(call.func) for call in found}
        calls = self._calls(None, names.__contains__)
        return sorted(calls, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))

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


def _names_torch(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import gives torch its own name."""
    roots = [each.asname or each.name.partition(".")[0] for each in node.names]
    return isinstance(node, ast.Import) and "torch" in roots


def _binds(scope: ast.AST, name: str) -> bool:
    """Whether a name is made inside an expression."""
    return any(
        getattr(each, "arg", None) == name
        or (isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store))
        for each in ast.walk(scope)
    )


def _give(call: ast.Call, given: dict[str, str]) -> None:
    """Set arguments; those of a dictionary that is handed on are laid over it."""
    values = {name: ast.parse(text, mode="eval").body for name, text in given.items()}
    for name in [name for name in values if _POSITIONS.get(name, len(call.args)) < len(call.args)]:
        if any(isinstance(each, ast.Starred) for each in call.args):
            raise CannotWrite(f"line {call.lineno} hands on arguments without their names")
        call.args[_POSITIONS[name]] = values.pop(name)
    handed_on = [each for each in call.keywords if each.arg is None]
    kept = [each for each in call.keywords if each.arg not in given]
    if not handed_on or not values:
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
