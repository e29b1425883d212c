"""What the demo's folder holds, and making it anew.

DEMO
├── script                  a script as people write them, and its fix (script.py)
├── script.html             both side by side
├── clips                   generated video with spikes beside it (engine.py)
├── turns/before-1 ...      slow and fixed settings in turns; the doctor judges the first
├── fixed                   trained on with the fixed settings; its pictures are in it
├── before-and-after.html   two turns side by side
└── report.html             the fixed run, with its pictures
"""

import shutil
from pathlib import Path
from typing import Final

from pitstop.errors import DataError, os_errors_as

SCRIPT: Final = "script"
CLIPS: Final = "clips"
TURNS: Final = "turns"
FIXED: Final = "fixed"
SCRIPT_PAGE: Final = "script.html"
COMPARED: Final = "before-and-after.html"
REPORT: Final = "report.html"

_OWN: Final = "made-by-pitstop-demo.txt"


def prepare_folder(folder: Path) -> None:
    """Make the demo's folder anew.

    Raises:
        DataError: The folder holds something else, or cannot be written to.
    """
    with os_errors_as(DataError, f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / _OWN).is_file():
            raise DataError(
                f"{folder} holds files that are not the demo's; name another folder with --output"
            )
        (folder / _OWN).write_text(
            "`pitstop demo` made this folder and replaces what it made when it runs again.\n",
            encoding="utf-8",
        )
        for name in (SCRIPT, CLIPS, TURNS, FIXED):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in (SCRIPT_PAGE, COMPARED, REPORT):
            (folder / name).unlink(missing_ok=True)
