"""Old configurations of every form as one: keys with values, and the place of each.

JSON with comments, Python with its bases, classes with defaults, YAML. A file is read, never
executed, and its size, its nesting and the number of its bases are bounded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pitstop.config.legacy.json_comments import read_json
from pitstop.config.legacy.python import BASE, PythonFile, read_module
from pitstop.config.problems import ConfigProblems, shorten
from pitstop.config.yaml.files import read_text
from pitstop.config.yaml.tree import read_tree
from pitstop.errors import ConfigError

MAX_BYTES: Final = 4 << 20
_MAX_CHAIN: Final = 10
_MAX_FILES: Final = 50
_DELETE: Final = "_delete_"

Form = Literal["json", "mmcv", "classes", "yaml"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFile:
    """An old configuration.

    Attributes:
        source: The file, or "text".
        form: How it is written.
        values: Value by key, groups joined with points.
        places: Where each key stands, as file:line; groups included.
        bases: The files it is laid over, in the order they were read.
    """

    source: str
    form: Form
    values: dict[str, Any]
    places: dict[str, str]
    bases: tuple[str, ...] = ()

    def place(self, key: str) -> str:
        """Say where a key stands, or the nearest group around it; the file where neither is."""
        parts = key.split(".")
        names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self.places[name] for name in names if name in self.places), self.source)


def read_old(old: Path | str) -> OldFile:
    """Read an old configuration: a path by its ending, or a str as YAML text.

    Raises:
        ConfigError: If it cannot be read.
    """
    if isinstance(old, str):
        return _read_yaml(old, "text")
    source = str(old)
    text = read_text(old, max_bytes=MAX_BYTES)
    if old.suffix == ".py":
        return _read_py(old, text)
    if old.suffix in {".json", ".jsonc"} or text.lstrip().startswith(("{\n", "//")):
        found = read_json(text, source)
        places = {key: f"{source}:{line}" for key, line in found.lines.items()}
        values = dict(flat(found.values))
        return OldFile(source=source, form="json", values=values, places=places)
    return _read_yaml(text, source)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Give every value under the names of the groups around it."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read_yaml(text: str, source: str) -> OldFile:
    tree = read_tree(text, source)
    if tree.problems:
        raise ConfigProblems(source, tree.problems)
    values = dict(flat(tree.values))
    if "model.kind" in values:
        raise ConfigError(
            f"{source} is a pitstop configuration already; try `pitstop config check {source}`"
        )
    places = {".".join(path): f"{source}:{origin.line}" for path, origin in tree.origins.items()}
    return OldFile(source=source, form="yaml", values=values, places=places)


def _read_py(path: Path, text: str) -> OldFile:
    reader = _BaseReader()
    layer = reader.read(path, text, chain=())
    if layer.classes and not any(isinstance(value, dict) for value in layer.values.values()):
        return _of_classes(path, layer.classes, layer.places)
    places = {
        key: place for key, place in layer.places.items() if key.split(".")[0] in layer.values
    }
    return OldFile(
        source=str(path),
        form="mmcv",
        values=dict(flat(layer.values)),
        places=places,
        bases=tuple(reader.bases),
    )


def _of_classes(
    path: Path, classes: Mapping[str, dict[str, Any]], places: Mapping[str, str]
) -> OldFile:
    """Join the fields of all classes that are not themselves the default of a field."""
    inner = [id(value) for fields in classes.values() for value in fields.values()]
    outer = {name: fields for name, fields in classes.items() if fields and id(fields) not in inner}
    if len(outer) == 1:
        [(name, fields)] = outer.items()
        found = {key.removeprefix(f"{name}."): place for key, place in places.items()}
        values = dict(flat(fields))
    else:
        found, values = dict(places), dict(flat(outer))
    return OldFile(source=str(path), form="classes", values=values, places=found)


@dataclass(slots=True, kw_only=True)
class _Layer:
    """A file laid over its bases."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    classes: dict[str, dict[str, Any]] = field(default_factory=dict)


class _BaseReader:
    """Follows ``_base_`` as mmcv does: the child wins, and two bases share no key."""

    def __init__(self) -> None:
        self.bases: list[str] = []
        self._files = 0

    def read(self, path: Path, text: str, *, chain: tuple[Path, ...]) -> _Layer:
        here = path.resolve()
        own = read_module(text, str(path))
        names = own.values.pop(BASE, None)
        place = f"{path}:{own.lines.get(BASE, 1)}"
        self._refuse_endless(here, chain, place)
        below = _Layer()
        for name in _base_names(names, place):
            layer = self._base(path.parent / name, place, (*chain, here))
            shared = sorted(below.values.keys() & layer.values.keys())
            if shared:
                raise ConfigError(f"{place}: two of its bases set {shared[0]}, which mmcv refuses")
            below.values |= layer.values
            below.places |= layer.places
        if names:
            own = read_module(text, str(path), below.values)
            own.values.pop(BASE, None)
        return _laid_over(below, own, path)

    def _base(self, path: Path, place: str, chain: tuple[Path, ...]) -> _Layer:
        if path.suffix != ".py":
            raise ConfigError(f"{place}: its base {shorten(path)} is no Python file")
        self.bases.append(str(path))
        try:
            text = read_text(path, max_bytes=MAX_BYTES)
        except ConfigError as error:
            raise ConfigError(f"{place}: its base cannot be read: {error}") from error
        return self.read(path, text, chain=chain)

    def _refuse_endless(self, here: Path, chain: tuple[Path, ...], place: str) -> None:
        self._files += 1
        if here in chain:
            raise ConfigError(f"{place}: its bases lead back to {here.name}")
        if len(chain) >= _MAX_CHAIN or self._files > _MAX_FILES:
            limits = f"{_MAX_CHAIN} deep or {_MAX_FILES} files"
            raise ConfigError(f"{place}: its bases are more than {limits}")


def _base_names(names: Any, place: str) -> list[str]:
    listed = [] if names is None else names if isinstance(names, list) else [names]
    if not all(type(name) is str for name in listed):
        raise ConfigError(f"{place}: _base_ must be a path or a list of paths")
    return listed


def _laid_over(below: _Layer, own: PythonFile, path: Path) -> _Layer:
    places = {key: f"{path}:{line}" for key, line in own.lines.items()}
    values = _merged(below.values, own.values)
    return _Layer(values=values, places=below.places | places, classes=own.classes)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a dict over another: dicts key by key, unless ``_delete_`` says to replace them."""
    made = dict(below)
    for name, value in above.items():
        if not isinstance(value, dict):
            made[name] = value
            continue
        inner = {key: part for key, part in value.items() if key != _DELETE}
        old = made.get(name)
        kept: dict[str, Any] = old if isinstance(old, dict) and not value.get(_DELETE) else {}
        made[name] = _merged(kept, inner)
    return made
