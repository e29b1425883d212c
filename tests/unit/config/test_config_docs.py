from pathlib import Path

from tests.fork_server.client import run_python

ROOT = Path(__file__).parents[3]


def test_the_page_of_settings_is_up_to_date() -> None:
    done = run_python(str(ROOT / "scripts/make_config_docs.py"), "--check")
    assert done.returncode == 0, done.stderr
