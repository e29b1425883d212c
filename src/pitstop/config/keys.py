"""Every setting there is: its type as text, its default, its documentation.

Error messages, suggestions and docs/configuration.md all come from this one list.
"""

import ast
import inspect
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from pitstop.config.quantities import Expect
from pitstop.config.sections import RunConfig, Section
from pitstop.config.workloads.by_kind import WorkloadSections

_NOUNS: Final[Mapping[Any, tuple[str, str]]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("text", "texts"),
    Path: ("a path", "paths"),
    types.NoneType: ("null", "null"),
}
_BOUNDS: Final = (("ge", "of at least"), ("gt", "above"), ("le", "of at most"), ("lt", "below"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting, or one group of settings.

    Attributes:
        name: The whole name, such as loader.workers.
        section: Class of the group; None for a single setting.
        expectation: What a value has to be, as text that fits "must be ...".
        choices: The allowed words, where there is a list of them.
        default: What holds when nothing is written.
        field: The field behind it.
        owner: The class the field is on.
    """

    name: str
    section: type[Section] | None
    expectation: str
    choices: tuple[str, ...]
    default: object
    field: FieldInfo
    owner: type[Section]

    @property
    def description(self) -> str:
        """What the setting means, as written under it in its section."""
        text = self.field.description or field_docs(self.owner).get(self.name.split(".")[-1], "")
        return " ".join(text.split())


def section_classes(workload: WorkloadSections | None) -> dict[str, type[Section]]:
    """Name the class of each top-level section, the workload's own where it is known."""
    classes: dict[str, type[Section]] = {}
    for name, field in RunConfig.model_fields.items():
        assert isinstance(field.annotation, type)
        classes[name] = field.annotation
    if workload is not None:
        classes |= {"data": workload.data, "model": workload.model, "loss": workload.loss}
    return classes


def every_key(classes: Mapping[str, type[Section]]) -> dict[str, Key]:
    """List all groups and settings under the given top-level sections, in order."""
    keys: dict[str, Key] = {}
    for name, section in classes.items():
        keys[name] = _group(name, section, RunConfig.model_fields[name], RunConfig)
        keys |= {key.name: key for key in _keys_of(section, name)}
    return keys


def expectation(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Say as text what a type accepts."""
    return _phrase(annotation, metadata, plural=False)


@cache
def field_docs(section: type[Section]) -> dict[str, str]:
    """Read the texts under the fields of a section, inherited ones included."""
    docs: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        if issubclass(owner, Section):
            [definition] = ast.parse(dedent(inspect.getsource(owner))).body
            assert isinstance(definition, ast.ClassDef)
            docs |= _docs_in(definition)
    return docs


def _docs_in(definition: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            docs[statement.target.id] = str(following.value.value)
    return docs


@cache
def _keys_of(section: type[Section], prefix: str) -> tuple[Key, ...]:
    keys: list[Key] = []
    for name, field in section.model_fields.items():
        key = f"{prefix}.{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            keys += _group(key, field.annotation, field, section), *_keys_of(field.annotation, key)
            continue
        single = Key(
            name=key,
            section=None,
            expectation=expectation(field.annotation, field.metadata),
            choices=_choices(field.annotation),
            default=None if field.is_required() else field.get_default(),
            field=field,
            owner=section,
        )
        keys.append(single)
    return tuple(keys)


def _group(name: str, section: type[Section], field: FieldInfo, owner: type[Section]) -> Key:
    return Key(
        name=name,
        section=section,
        expectation="a group of settings",
        choices=(),
        default=None,
        field=field,
        owner=owner,
    )


def _choices(annotation: Any) -> tuple[str, ...]:
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()


def _phrase(annotation: Any, metadata: Sequence[Any], *, plural: bool) -> str:
    expect = next((item.words for item in metadata if isinstance(item, Expect)), None)
    if expect is not None:
        return expect
    if get_origin(annotation) is Annotated:
        inner, *extra = get_args(annotation)
        return _phrase(inner, [*metadata, *_flat(extra)], plural=plural)
    if get_origin(annotation) is not None:
        return _compound_phrase(annotation, plural=plural)
    noun = _NOUNS.get(annotation, ("a value of another type", "a value of another type"))[plural]
    return " ".join([noun, *_bounds(metadata)])


def _compound_phrase(annotation: Any, *, plural: bool) -> str:
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        words = _joined_choices([str(choice) for choice in arguments])
        return f"one of {words}" if len(arguments) > 2 else words
    if get_origin(annotation) is tuple:
        return _tuple_phrase(arguments)
    if get_origin(annotation) in {Union, types.UnionType}:
        return _joined_choices([_phrase(part, (), plural=plural) for part in arguments])
    return "a value of another type"


def _tuple_phrase(arguments: tuple[Any, ...]) -> str:
    count = "a list of" if arguments[-1] is Ellipsis else f"{len(arguments)}"
    return f"{count} {_phrase(arguments[0], (), plural=True)}"


def _bounds(metadata: Sequence[Any]) -> list[str]:
    limits = {
        name: getattr(item, name)
        for item in metadata
        for name in ("ge", "gt", "le", "lt", "multiple_of")
        if getattr(item, name, None) is not None
    }
    words: list[str] = []
    if {"ge", "le"} <= limits.keys():
        words.append(f"from {limits.pop('ge')} to {limits.pop('le')}")
    found = [f"{words} {limits[name]}" for name, words in _BOUNDS if name in limits]
    words += [" and ".join(found)] if found else []
    if "multiple_of" in limits:
        words.append(f"that is a multiple of {limits['multiple_of']}")
    return words


def _flat(metadata: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for item in metadata:
        flat += item.metadata if isinstance(item, FieldInfo) else [item]
    return flat


def _joined_choices(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
