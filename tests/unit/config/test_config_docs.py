import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_of_settings_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/make_config_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
