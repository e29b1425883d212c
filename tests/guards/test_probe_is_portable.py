"""The probe goes into other people's interpreters: Python 3.9 and the standard library only."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pitstop_probe
from pitstop.records.store import read_run
from pitstop.records.summary import summarise

OLDEST = (3, 9)
FOLDER = Path(pitstop_probe.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))

# Keywords of calls that Python 3.9 does not know, though the call itself it does.
YOUNGER_KEYWORDS = {("zip", "strict"), ("dataclass", "slots"), ("dataclass", "kw_only")}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=OLDEST)


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield str(node.module)


def annotations(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if (found := getattr(node, name, None)) is not None:
                yield found


def test_there_are_files_to_check() -> None:
    assert {path.name for path in FILES} >= {"__init__.py", "clock.py", "device.py", "writer.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_probe_is_written_in_python_3_9(path: Path) -> None:
    tree = parsed(path)
    for annotation in annotations(tree):
        unions = [n for n in ast.walk(annotation) if isinstance(n, ast.BinOp)]
        assert not unions, f"line {annotation.lineno}: X | Y is evaluated, and 3.9 cannot"
    for node in ast.walk(tree):
        assert not type(node).__name__.startswith(("Match", "TryStar")), "younger syntax"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            used = {(node.func.id, keyword.arg) for keyword in node.keywords}
            assert not used & YOUNGER_KEYWORDS, f"line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_probe_imports_the_standard_library_and_itself_only(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(parsed(path))}
    assert tops <= sys.stdlib_module_names | {"pitstop_probe"}


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pitstop_probe import Clock, RecordWriter, cuda_timer
assert cuda_timer() is None
now = [0]
writer = RecordWriter(sys.argv[2], {"name": "old"}, now_us=lambda: now[0])
clock = Clock(writer, now_us=lambda: now[0])
for step in range(300):
    clock.begin_step()
    with clock.span("forward"):
        with clock.span("stage"):
            now[0] += 10
        now[0] += 5
    with clock.outside_step("evaluation"):
        now[0] += 7
    clock.count(samples=2)
    writer.scalars(step, {"loss": float("nan")})
clock.close()
writer.close()
print(sys.version_info[:2])
"""


def interpreters() -> list[str]:
    """Every Python 3.9 that can be found here; one that does not start is none."""
    places = [shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9.*/bin/python")]
    return [str(place) for place in places if place is not None and _is_oldest(str(place))]


def _is_oldest(python: str) -> bool:
    code = "import sys; sys.exit(sys.version_info[:2] != (3, 9))"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def test_clock_and_writer_run_under_the_oldest_python_here(tmp_path: Path) -> None:
    """Where there is no Python 3.9 the present one runs it, and the checks above stand for it."""
    found = interpreters()
    python = found[0] if found else sys.executable
    path = tmp_path / "rank-0.jsonl"
    done = subprocess.run(
        [python, "-W", "error", "-c", PROGRAM, str(FOLDER.parent), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(OLDEST if found else sys.version_info[:2])
    record = read_run(path).first
    summary = summarise(record)
    assert record.notes == ()
    assert (summary.steps, summary.wall.total_us, summary.outside_us) == (300, 4_500, 2_100)
    assert [span.host_self_us for span in summary.spans] == [1_500, 3_000]
    assert summary.samples == 600
