"""Every block of the page about our parts runs as it stands."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.fork_server.client import run_python

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "use-our-parts.md"
SECTIONS = re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PARTS = [
    (name, code)
    for name, text in SECTIONS
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
TRAINERS = {"Lightning": "lightning", "Hugging Face Trainer": "transformers"}


def test_the_page_shows_every_part_with_a_block() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert list(dict.fromkeys(name for name, _ in PARTS)) == headings
    assert len(PARTS) == PAGE.read_text().count("```python")
    assert {"SharedCache", "PKSampler", "DevicePrefetcher", "build_optimizer"} < set(headings)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param(name, code, id=name, marks=[pytest.mark.slow] if name in TRAINERS else [])
        for name, code in PARTS
    ],
)
def test_a_block_runs_as_it_stands(name: str, code: str, tmp_path: Path) -> None:
    if name in TRAINERS and importlib.util.find_spec(TRAINERS[name]) is None:
        pytest.skip(f"{TRAINERS[name]} is not installed")
    script = tmp_path / "block.py"
    script.write_text(code)
    done = run_python(script.name, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    if "runs/" in code:
        assert list((tmp_path / "runs").rglob("rank-0.jsonl")), done.stderr
