"""Write docs/api.md from the docstrings of what pitstop offers; `--check` fails if it is old.

The sources are read, not imported: the page is the same on every Python and with every torch.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "api.md"
SOURCES = ROOT / "src"

HEAD = """# API reference

Generated from docstrings by `scripts/make_api_docs.py`; edit those. What `pitstop` and
`pitstop_probe` offer to other people's code, and the few modules that the guides here import from;
everything else is a detail that may change. Examples: [use our parts](use-our-parts.md),
[quickstart](quickstart.md), [export](commands/export.md).
"""

PACKAGES = {
    "pitstop": "Imported when first asked for: `import pitstop` needs neither torch nor numpy.",
    "pitstop_probe": "For loops that are marked by hand. Standard library and your own torch only, "
    "from Python 3.9 on.",
}
MODULES = {
    "pitstop.records.store": ("read_run", "RunFollower"),
    "pitstop.records.summary": ("summarise",),
    "pitstop.records.pictures": ("PictureCell", "PictureRow", "Pictures", "write_pictures"),
    "pitstop.kernels.splat": ("splat", "splat_reference"),
    "pitstop.workloads.deblur.spike": ("read_dat", "write_dat"),
    "pitstop.errors": None,
}
"""By module, the names that the documentation uses; None for all of them."""

# What an object is made of, beside the methods that have plain names.
_SHOWN_METHODS = ("__call__", "__getitem__", "__iter__", "__len__")
_OF_NAMES = ("Args", "Attributes", "Raises")
_SECTIONS = (*_OF_NAMES, "Returns", "Yields")
_LINE = 100

Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """A class or function, and the module in which it stands."""

    node: Definition
    module: str


def main() -> int:
    text = render()
    if "--check" in sys.argv[1:]:
        if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.name} is out of date; run {Path(__file__).name}", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    parts = [HEAD]
    for package, about in PACKAGES.items():
        parts.append(f"\n## {package}\n\n{about}\n")
        found = [one for name in exported(package) if (one := definition(package, name))]
        parts += [entry(package, one) for one in found]
        parts += [entry(None, one) for one in _returned(found)]
    for module, names in MODULES.items():
        parts.append(f"\n## {module}\n\n{_first_paragraph(_parsed(module))}\n")
        for name in names or _classes_of(module):
            one = definition(module, name)
            assert one is not None, f"{module} has no {name}"
            parts.append(entry(module, one))
    return "".join(parts)


def exported(package: str) -> list[str]:
    """Names in a package's `__all__`, in its order, but for the version."""
    for node in _parsed(package).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return [name for name in names if not name.startswith("__")]
    raise SystemExit(f"{package} has no __all__")


def definition(module: str, name: str) -> Documented | None:
    """Find a class or function, in a module or where it has it from; None for what is not ours."""
    for node in _statements(module):
        if isinstance(node, Definition) and node.name == name:
            return Documented(node=node, module=module)
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            home = node.module or ""
            return definition(home, name) if home.partition(".")[0] in PACKAGES else None
    return None


def _statements(module: str) -> Iterator[ast.stmt]:
    """Outermost statements, those for type checkers alone among them."""
    for node in _parsed(module).body:
        yield node
        if isinstance(node, ast.If):
            yield from node.body


def _parsed(module: str) -> ast.Module:
    place = SOURCES.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _classes_of(module: str) -> list[str]:
    return [node.name for node in _parsed(module).body if isinstance(node, ast.ClassDef)]


def _returned(found: Iterable[Documented]) -> Iterator[Documented]:
    """Classes that an offered function of the same file gives back: users hold them, too."""
    offered = {one.node.name for one in found}
    for one in found:
        if isinstance(one.node, ast.FunctionDef) and one.node.returns is not None:
            name = ast.unparse(one.node.returns)
            given = definition(one.module, name)
            if given is not None and isinstance(given.node, ast.ClassDef) and name not in offered:
                offered.add(name)
                yield given


def entry(module: str | None, one: Documented) -> str:
    """A heading, the signature, the docstring and, of a class, its methods."""
    node = one.node
    name = node.name if module is None else f"{module}.{node.name}"
    parts = [f"\n### {name}\n\n", f"```text\n{_signature(one)}\n```\n", _text(node)]
    if isinstance(node, ast.ClassDef):
        parts += [_method(node, method) for method in _methods(one)]
    return "".join(parts)


def _signature(one: Documented) -> str:
    node = one.node
    if isinstance(node, ast.FunctionDef):
        used_by_with = "contextmanager" in map(ast.unparse, node.decorator_list)
        return ("@contextmanager\n" if used_by_with else "") + _call(node.name, node)
    built = next((each for each in _functions(node) if each.name == "__init__"), None)
    if built is not None:
        return f"class {_call(node.name, built, is_method=True).partition(' -> ')[0]}"
    fields = [
        ast.unparse(each)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_")
    ]
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"class {node.name}({', '.join(fields) or bases})"


def _call(name: str, node: ast.FunctionDef, *, is_method: bool = False) -> str:
    """A call as it stands in the source, an argument a line where it is long."""
    arguments = [_spaced(each) for each in _split(ast.unparse(node.args))]
    if is_method and arguments[0] in ("self", "cls"):
        arguments = arguments[1:]
    gives = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    line = f"{name}({', '.join(arguments)}){gives}"
    if len(line) <= _LINE:
        return line
    lines = "\n".join(f"    {each}," for each in arguments)
    return f"{name}(\n{lines}\n){gives}"


def _split(arguments: str) -> list[str]:
    """Cut at commas that stand in no bracket."""
    depth, pieces = 0, [""]
    for letter in arguments:
        depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces if piece.strip()]


def _spaced(argument: str) -> str:
    """Put spaces around the default of an annotated argument, as the sources have them."""
    name, colon, rest = argument.partition(": ")
    kind, equals, default = rest.partition("=")
    return f"{name}: {kind} = {default}" if colon and equals else argument


def _functions(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef)]


def _methods(one: Documented) -> Iterator[ast.FunctionDef]:
    """Public methods with a docstring, then those of the base classes that we wrote."""
    assert isinstance(one.node, ast.ClassDef)
    seen = set()
    for owner in _with_bases(one):
        for each in _functions(owner):
            is_public = not each.name.startswith("_") or each.name in _SHOWN_METHODS
            if is_public and each.name not in seen and ast.get_docstring(each):
                seen.add(each.name)
                yield each


def _with_bases(one: Documented) -> Iterator[ast.ClassDef]:
    assert isinstance(one.node, ast.ClassDef)
    yield one.node
    for base in one.node.bases:
        above = definition(one.module, ast.unparse(base).partition("[")[0])
        if above is not None and isinstance(above.node, ast.ClassDef):
            yield from _with_bases(above)


def _method(owner: ast.ClassDef, node: ast.FunctionDef) -> str:
    marks = {ast.unparse(each) for each in node.decorator_list}
    is_property = bool(marks & {"property", "cached_property", "functools.cached_property"})
    if is_property:
        gives = "" if node.returns is None else f": {ast.unparse(node.returns)}"
        said = f"{owner.name}.{node.name}{gives}"
    else:
        said = _call(f"{owner.name}.{node.name}", node, is_method="staticmethod" not in marks)
    return f"\n#### {node.name}\n\n```text\n{said}\n```\n{_text(node)}"


def _first_paragraph(node: ast.Module) -> str:
    return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")


def _text(node: Definition) -> str:
    """A docstring in Markdown: its sections as lists."""
    text = ast.get_docstring(node)
    if not text:
        return ""
    paragraphs = [paragraph(each) for each in cleandoc(text).split("\n\n")]
    return "\n" + "\n\n".join(paragraphs) + "\n"


def paragraph(text: str) -> str:
    heading, _, rest = text.partition("\n")
    section = heading.removesuffix(":")
    if heading.endswith(":") and section in _SECTIONS and rest:
        said = _listed(rest) if section in _OF_NAMES else " ".join(dedent(rest).split("\n"))
        text = f"*{section}*\n\n{said}"
    return text.replace("``", "`")


def _listed(text: str) -> str:
    """Entries of a section; lines that are indented further go on with the one before."""
    joined: list[str] = []
    for line in dedent(text).splitlines():
        if line.startswith(" "):
            joined[-1] += " " + line.strip()
        else:
            joined.append(re.sub(r"^([\w.]+)( \([^)]*\))?: ", r"`\1`\2: ", line))
    return "\n".join(f"- {line}" for line in joined)


if __name__ == "__main__":
    raise SystemExit(main())
