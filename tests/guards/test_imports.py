"""What may be imported when: torch-free packages stay so, and asking for help costs nothing."""

import os
import subprocess
import sys

import pytest


def imported(code: str) -> set[str]:
    """Run code in a fresh interpreter and give the top-level modules it has imported."""
    tail = "\nimport sys; print('\\n'.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("\n"))


def test_importing_pitstop_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pydantic", "rich", "typer", "yaml", "jinja2", "psutil"}
    assert not imported("import pitstop") & heavy


def test_facts_verdicts_and_words_never_import_torch() -> None:
    code = """
import importlib, pkgutil
for room in ("errors", "records", "config", "doctor", "report", "cli.main", "cli.demo.command"):
    module = importlib.import_module(f"pitstop.{room}")
    for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
        importlib.import_module(inner.name)
assert len([name for name in __import__("sys").modules if name.startswith("pitstop.")]) > 20
"""
    assert "torch" not in imported(code)


def test_the_command_line_imports_heavy_rooms_only_when_a_command_runs() -> None:
    heavy = {"torch", "numpy", "pydantic", "rich", "yaml", "jinja2", "psutil"}
    assert not imported("import pitstop.cli.main") & heavy


@pytest.mark.parametrize("arguments", ["'--help'", "'doctor', '--help'", "'--version'"])
def test_help_needs_no_numbers(arguments: str) -> None:
    code = f"""
import contextlib, io, sys
from pitstop.cli.main import main
sys.argv = ["pitstop", {arguments}]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
"""
    # Rich and pydantic are not among them: the framework draws help pages and checks with them.
    assert not imported(code) & {"torch", "numpy", "yaml", "jinja2", "psutil"}


def best_of_five_s(code: str) -> float:
    """Processor time, which does not depend on who else is at work."""
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        used = after.children_user + after.children_system
        times.append(used - before.children_user - before.children_system)
    return min(times)


def test_importing_pitstop_takes_a_blink() -> None:
    """Against an empty interpreter, so that a slow machine is not blamed on pitstop."""
    bare_s = best_of_five_s("pass")
    assert best_of_five_s("import pitstop") - bare_s < max(0.3, 10 * bare_s)
