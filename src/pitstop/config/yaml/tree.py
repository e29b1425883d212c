"""YAML read into a plain tree that remembers where everything was written.

Scalars stay the text that was typed: their type is the business of the setting they belong to.
Only `null`, `~` and nothing at all are recognised, as None.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from pitstop.config.problems import Origin, Problem, shorten

Values = dict[str, Any]
Path = tuple[str, ...]

_MAX_DEPTH: Final = 20
_MAX_NODES: Final = 20_000
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TAGS: Final = frozenset({f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")})


class _TooMuchError(Exception):
    """Nested or repeated beyond what a configuration can need, as aliases of aliases are."""


@dataclass(slots=True, kw_only=True)
class Tree:
    """Settings as written, where each was written, and the mistakes made in writing them."""

    values: Values = field(default_factory=dict)
    origins: dict[Path, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    incomplete: bool = False
    """Something could not be read, so what is missing may not be missing."""

    def merge(self, other: "Tree") -> None:
        """Lay another tree over this one; groups are merged key by key, all else is replaced.

        A top-level section left empty says nothing, so it does not wipe out what is below it.
        """
        for name, value in other.values.items():
            if value is not None or name not in self.values:
                _lay_over(self.values, name, value)
        self.origins.update(other.origins)
        self.problems += other.problems
        self.incomplete |= other.incomplete

    def origin(self, key: str) -> Origin | None:
        """Find where a setting, or the nearest group around it, was written."""
        path = tuple(key.split("."))
        prefixes = (path[:end] for end in range(len(path), 0, -1))
        return next((self.origins[prefix] for prefix in prefixes if prefix in self.origins), None)

    def written(self) -> frozenset[str]:
        """List the settings that have a value, groups included; null counts as not written."""
        return frozenset(_written(self.values, ""))


def read_tree(text: str, source: str) -> Tree:
    """Read YAML text; whatever is wrong with it is in the tree's `problems`."""
    tree = Tree()
    try:
        node = yaml.compose(text, Loader=_Loader)
        if isinstance(node, yaml.MappingNode):
            tree.values = _Reader(tree, source, numbers_lines=True).mapping(node, ())
        elif node is not None and not _is_null(node):
            message = "must be settings such as `train:`, not a list or a single value"
            tree.problems.append(Problem(key="", message=message))
            tree.incomplete = True
    except (yaml.YAMLError, _TooMuchError) as error:
        tree.incomplete = True
        origin = Origin(source=source, line=_line_of(error))
        tree.problems.append(Problem(key="", message=_why_unreadable(error), origin=origin))
    return tree


def read_override(text: str, path: Path, source: str) -> Tree:
    """Read the value, written as YAML, of the one setting at `path`."""
    origin = Origin(source=source)
    tree = Tree(origins={path: origin})
    value: Any = None
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            value = _Reader(tree, source, numbers_lines=False).value(node, path)
    except (yaml.YAMLError, _TooMuchError) as error:
        message = _why_unreadable(error)
        tree.problems.append(Problem(key=".".join(path), message=message, origin=origin))
        tree.incomplete = True
        return tree
    for name in reversed(path):
        value = {name: value}
    tree.values = value
    return tree


def plain_tree(settings: Mapping[Any, Any], source: str) -> Tree:
    """Make a tree of settings that come from code instead of a file."""
    return Tree(
        values=_plain(settings), origins={(str(name),): Origin(source=source) for name in settings}
    )


class _Loader(yaml.BaseLoader):
    """The loader that resolves no types, stopped before nesting exhausts the stack."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        self.nodes += 1
        # A key is a node as well as its value.
        if self.depth > _MAX_DEPTH or self.nodes > 2 * _MAX_NODES:
            raise _TooMuchError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Reader:
    """Turns composed nodes into plain values and notes origins and mistakes in a tree."""

    def __init__(self, tree: Tree, source: str, *, numbers_lines: bool) -> None:
        self._tree = tree
        self._source = source
        self._numbers_lines = numbers_lines
        self._nodes = 0
        self._depth = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        self._depth += 1
        # Aliases make a node appear many times, so limits on the text alone do not hold here.
        if self._nodes > _MAX_NODES or self._depth > _MAX_DEPTH:
            raise _TooMuchError
        value = self._read(node, path)
        self._depth -= 1
        return value

    def mapping(self, node: yaml.MappingNode, path: Path) -> Values:
        values: Values = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            inner = (*path, key)
            if key in values:
                first = self._tree.origins[inner].line
                self._note(key_node, inner, f"is set twice, first on line {first}")
                continue
            self._tree.origins[inner] = self._origin(key_node)
            values[key] = self.value(value_node, inner)
        return values

    def _read(self, node: yaml.Node, path: Path) -> Any:
        if node.tag not in _TAGS:
            self._note(node, path, f"has the tag {shorten(node.tag)}; tags are not read")
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, path) for item in node.value]
        return None if _is_null(node) else node.value

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            self._note(node, path, "has a key that is not a name")
            return None
        if node.value == "<<":
            self._note(node, (*path, "<<"), "merge keys are not read; use `base:`")
            return None
        return node.value

    def _note(self, node: yaml.Node, path: Path, message: str) -> None:
        key = shorten(".".join(path), limit=80) if path else ""
        self._tree.problems.append(Problem(key=key, message=message, origin=self._origin(node)))

    def _origin(self, node: yaml.Node) -> Origin:
        line = node.start_mark.line + 1 if self._numbers_lines else None
        return Origin(source=self._source, line=line)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS


def _line_of(error: Exception) -> int | None:
    mark = getattr(error, "problem_mark", None)
    return None if mark is None else mark.line + 1


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, _TooMuchError):
        return f"is nested deeper than {_MAX_DEPTH} levels or has more than {_MAX_NODES} values"
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "broken"
    return f"is not readable as YAML: {shorten(reason, limit=120)}"


def _lay_over(values: Values, name: str, value: Any) -> None:
    below = values.get(name)
    if isinstance(below, dict) and isinstance(value, dict):
        for inner, inner_value in value.items():
            _lay_over(below, inner, inner_value)
    else:
        values[name] = _plain(value) if isinstance(value, dict) else value


def _plain(mapping: Mapping[Any, Any]) -> Values:
    return {
        str(name): _plain(value) if isinstance(value, Mapping) else value
        for name, value in mapping.items()
    }


def _written(values: Values, prefix: str) -> Iterator[str]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        inner = list(_written(value, f"{key}.")) if isinstance(value, dict) else []
        yield from inner
        if inner or (value is not None and not isinstance(value, dict)):
            yield key
