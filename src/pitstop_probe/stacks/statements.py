"""What the statements of a training loop are for, by the names they read and write.

The statements that call the model are known. What follows from their results is the loss as long
as it can have gradients; what makes their arguments makes batches; the rest is other work. A file
is read for this and never run.
"""

import ast
import linecache
from typing import Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

CALLS_MODEL = "calls the model"
LOSS, DATA, HOST = "loss", "data", "host"

# What comes out of these has no gradients.
_DETACHING = frozenset(
    ("item", "detach", "tolist", "numpy", "argmax", "sample", "size", "shape", "data")
)
_PLAIN_NUMBERS = frozenset(("float", "int", "len", "bool", "str", "print"))
# Methods that change what they are called on; so do those whose names end in an underscore.
_CHANGING = frozenset(("append", "extend", "add", "insert", "update", "put", "appendleft"))

_Names = FrozenSet[str]


class Statement(NamedTuple):
    """Some lines that are carried out together, and the names in them."""

    first: int
    last: int
    reads: _Names
    """All names that it reads."""
    follows: _Names
    """Of these, those whose gradients may reach what it writes."""
    writes: _Names
    replaces: _Names
    """Of these, those that hold nothing of what they held before."""
    is_kept: bool
    """Whether its result goes anywhere: a call whose result is dropped computes no loss."""


def statements_of(file: str, function: str, first_line: int) -> List[Statement]:
    """Give the statements of a function, or of a whole file; none where the source is not there."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    body = tree.body if function == "<module>" else _body_of(tree, function, first_line)
    return _by_line(_statement(node, parts) for node, parts in _flattened(body))


def _body_of(tree: ast.AST, function: str, first_line: int) -> List[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function:
            starts = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
            if min(starts) <= first_line <= node.lineno:
                return node.body
    return []


def _flattened(body: Iterable[ast.stmt]) -> Iterator[Tuple[ast.stmt, List[ast.AST]]]:
    """Go through statements in the order of their lines; of what holds others, give its head."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        inner = [
            value
            for name in ("body", "orelse", "finalbody", "handlers")
            for value in getattr(node, name, ())
        ]
        if not inner:
            yield node, list(ast.iter_child_nodes(node))
            continue
        held = {id(value) for value in inner}
        head = [child for child in ast.iter_child_nodes(node) if id(child) not in held]
        if head:
            yield node, head
        for value in inner:
            nested = value.body if isinstance(value, ast.ExceptHandler) else [value]
            yield from _flattened(nested)


def _statement(node: ast.stmt, parts: List[ast.AST]) -> Statement:
    names = _NamesIn()
    for part in parts:
        names.visit(part, follows=True)
    if isinstance(node, ast.AugAssign):  # what it adds to is read, too
        names.reads |= names.writes
        names.follows |= names.writes
        names.replaces.clear()
    is_kept = not isinstance(node, ast.Expr)
    if isinstance(node, ast.Expr):
        is_kept = _changes_or_goes_back(node.value, names)
    ends = [getattr(part, "end_lineno", None) or node.lineno for part in parts]
    return Statement(
        node.lineno,
        max(ends, default=node.lineno),
        frozenset(names.reads),
        frozenset(names.follows),
        frozenset(names.writes),
        frozenset(names.replaces),
        is_kept,
    )


def _changes_or_goes_back(value: ast.expr, names: "_NamesIn") -> bool:
    """Whether a call whose result is dropped keeps it all the same, or is the backward pass."""
    if isinstance(value, (ast.Yield, ast.Await)):
        return True
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    name = value.func.attr
    if name in _CHANGING or (name.endswith("_") and not name.endswith("__")):
        owner = _name_of(value.func.value)
        if owner is not None:
            names.writes.add(owner)
        return True
    return "backward" in name


class _NamesIn:
    """Gathers the names in an expression."""

    def __init__(self) -> None:
        self.reads: Set[str] = set()
        self.follows: Set[str] = set()
        self.writes: Set[str] = set()
        self.replaces: Set[str] = set()

    def visit(self, node: ast.AST, *, follows: bool) -> None:
        name = _name_of(node)
        if name is None:
            for child in ast.iter_child_nodes(node):
                self.visit(child, follows=follows and not _detaches(node))
            return
        if isinstance(getattr(node, "ctx", None), ast.Store):
            self.writes.add(name)
            if isinstance(node, ast.Name) or name.startswith("self."):
                self.replaces.add(name)
        else:
            self.reads.add(name)
            if follows and not _is_detached(node):
                self.follows.add(name)
        for child in _beside_name(node):
            self.visit(child, follows=follows)


def _name_of(node: ast.AST) -> Optional[str]:
    """The variable that an expression starts from: ``x`` of ``x.y[0]``, and ``self.x`` as such."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        inner = node.value
        if isinstance(node, ast.Attribute) and isinstance(inner, ast.Name) and inner.id == "self":
            return "self." + node.attr
        node = inner
    return node.id if isinstance(node, ast.Name) else None


def _beside_name(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions inside the brackets of ``x[i].y[j]``."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        if isinstance(node, ast.Subscript):
            yield node.slice
        node = node.value


def _is_detached(node: ast.AST) -> bool:
    """Whether only something without gradients is taken of a name: ``x.shape``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and node.attr in _DETACHING:
            return True
        node = node.value
    return False


def _detaches(node: ast.AST) -> bool:
    """Whether what a call gives has no gradients: ``x.mean().item()``, ``float(x)``."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr in _DETACHING
    return isinstance(function, ast.Name) and function.id in _PLAIN_NUMBERS


def _by_line(statements: Iterable[Statement]) -> List[Statement]:
    """Join the statements of one line: which of them is at work is not seen."""
    joined: List[Statement] = []
    for one in statements:
        if joined and one.first == joined[-1].last == joined[-1].first:
            joined.append(_joined(joined.pop(), one))
        else:
            joined.append(one)
    return joined


def _joined(one: Statement, other: Statement) -> Statement:
    return Statement(
        one.first,
        other.last,
        one.reads | other.reads,
        one.follows | other.follows,
        one.writes | other.writes,
        one.replaces | other.replaces,
        one.is_kept or other.is_kept,
    )


class Flow:
    """What each statement of a function is for, once it is known which of them call the model.

    A function that trains goes through its statements again and again, so what the last turn left
    counts for the next.
    """

    def __init__(self, statements: List[Statement], model_lines: Iterable[int]) -> None:
        lines = list(model_lines)
        self._statements = statements
        self._purposes: Dict[Statement, str] = {
            one: CALLS_MODEL
            for one in statements
            if any(one.first <= line <= one.last for line in lines)
        }
        self._follow()
        self._lead_up()

    def purpose_at(self, line: int) -> Optional[str]:
        """Say what a line is for: one of the four; None where it is not known."""
        found = [one for one in self._statements if one.first <= line <= one.last]
        return self._purposes.get(min(found, key=_length)) if found else None

    def _follow(self) -> None:
        """Find what follows from the model's results: with gradients, and without."""
        with_gradients: Set[str] = set()
        derived: Set[str] = set()
        for one in self._statements * 2:
            if self._purposes.get(one) == CALLS_MODEL:
                with_gradients |= one.writes
                continue
            with_gradients_now = one.follows & with_gradients
            derived_now = one.reads & (with_gradients | derived)
            with_gradients -= one.replaces
            derived -= one.replaces
            if with_gradients_now and one.is_kept:
                self._purposes[one] = LOSS
                with_gradients |= one.writes
            elif derived_now:
                self._purposes[one] = HOST
                derived |= one.writes
            else:
                self._purposes.pop(one, None)

    def makes_arguments(self, line: int) -> bool:
        """Whether a line makes what the model is given, and not only what the loss is."""
        return any(one.first <= line <= one.last for one in self._for_model)

    def _lead_up(self) -> None:
        """Find what makes the arguments of the model, and of the loss."""
        self._for_model = self._leading_to((CALLS_MODEL,))
        for one in self._leading_to((CALLS_MODEL, LOSS)):
            self._purposes[one] = DATA
        for one in self._statements:
            self._purposes.setdefault(one, HOST)

    def _leading_to(self, purposes: Tuple[str, ...]) -> Set[Statement]:
        """Statements of no known purpose whose results go, in the end, into those of some."""
        needed: Set[str] = set()
        for one, purpose in self._purposes.items():
            if purpose in purposes:
                needed |= one.reads
        found: Set[Statement] = set()
        for one in reversed(self._statements * 2):
            if one not in self._purposes and one.writes & needed:
                found.add(one)
                needed |= one.reads
        return found


def _length(statement: Statement) -> int:
    return statement.last - statement.first
