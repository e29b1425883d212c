"""Configuration files with their bases, and overrides from the command line, as one tree."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pitstop.config.problems import COMMAND_LINE, Origin, Problem, shorten
from pitstop.config.shipped import shipped_folder
from pitstop.config.yaml.tree import Tree, read_override, read_tree
from pitstop.errors import ConfigError
from pitstop.records.files import read_regular

_MAX_FILE_BYTES: Final = 1 << 20
_MAX_CHAIN: Final = 10
_MAX_FILES: Final = 50


def read_text(path: Path, *, max_bytes: int = _MAX_FILE_BYTES) -> str:
    """Read a configuration file of at most `max_bytes`.

    Raises:
        ConfigError: If there is no such file, or it is not UTF-8 text of a sensible size.
    """
    name = shorten(path, limit=200)
    try:
        if path.is_dir():
            raise ConfigError(f"{name} is a folder; name a YAML file in it")
        if not path.is_file():
            raise ConfigError(f"there is no file {name}")
        if path.stat().st_size > max_bytes:
            limit = f"{max_bytes >> 20} MiB"
            raise ConfigError(f"{name} is larger than {limit}; that is no configuration")
        return read_regular(path, most_bytes=max_bytes).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            reason = f"byte {error.start} is not UTF-8 text"
        else:
            reason = getattr(error, "strerror", None) or "the name is not usable"
        raise ConfigError(f"{name} cannot be read: {reason}") from error


def read_with_bases(path: Path) -> Tree:
    """Read a file laid over its bases; a base that cannot be used is one of the problems.

    Raises:
        ConfigError: If the file itself cannot be read.
    """
    return _BaseReader().read(path, chain=())


def apply_overrides(tree: Tree, overrides: Iterable[str]) -> None:
    """Lay `key.sub=value` texts over a tree, the last one on top."""
    for override in overrides:
        tree.merge(_override(override))


class _BaseReader:
    """Follows bases, and counts files so that a web of them comes to an end."""

    def __init__(self) -> None:
        self._files = 0

    def read(self, path: Path, *, chain: tuple[Path, ...]) -> Tree:
        path = _shipped(path)
        text = read_text(path)
        here = path.resolve()
        if here in chain:
            around = " -> ".join(link.name for link in (*chain[chain.index(here) :], here))
            raise ConfigError(f"leads back to itself: {around}")
        self._files += 1
        if len(chain) >= _MAX_CHAIN or self._files > _MAX_FILES:
            raise ConfigError(f"is more than {_MAX_CHAIN} deep or {_MAX_FILES} files in all")
        own = read_tree(text, str(path))
        bases = own.values.pop("base", None)
        tree = Tree()
        for base in _names(bases, own):
            tree.merge(self._base(path.parent / base, own, chain=(*chain, here)))
        tree.merge(own)
        return tree

    def _base(self, path: Path, own: Tree, *, chain: tuple[Path, ...]) -> Tree:
        try:
            return self.read(path, chain=chain)
        except ConfigError as error:
            problem = Problem(key="base", message=str(error), origin=own.origin("base"))
            return Tree(problems=[problem], incomplete=True)


def _shipped(path: Path) -> Path:
    """Take a preset that the package carries where no such file is here: `configs/bev/demo.yaml`.

    Documentation and hints name presets so, and a package that is installed apart has no checkout.
    """
    folder = shipped_folder("presets", in_checkout="configs")
    if folder is None or path.parts[:1] != ("configs",) or ".." in path.parts:
        return path
    preset = folder.joinpath(*path.parts[1:])
    return preset if preset.is_file() and not path.exists() else path


def _names(bases: Any, own: Tree) -> list[str]:
    names = bases if isinstance(bases, list) else [] if bases is None else [bases]
    if all(isinstance(name, str) for name in names):
        return names
    message = f"must be a path or a list of paths, not {shorten(bases)}"
    own.problems.append(Problem(key="base", message=message, origin=own.origin("base")))
    own.incomplete = True
    return []


def _override(text: str) -> Tree:
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    origin = Origin(source=COMMAND_LINE)
    if not equals or not all(path) or len(path) > _MAX_CHAIN:
        message = "must look like key=value, for example train.batch_size=4"
        return Tree(problems=[Problem(key=shorten(text), message=message, origin=origin)])
    if path[0] == "base":
        message = "belongs into a file; name that file instead"
        return Tree(problems=[Problem(key="base", message=message, origin=origin)])
    return read_override(value, path, COMMAND_LINE)
