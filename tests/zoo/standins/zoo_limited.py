"""Runs a script that imports no stand-in, seeded and for ZOO_STEPS optimizer steps."""

import runpy
import sys
from pathlib import Path

from zoo_stop import obey

if __name__ == "__main__":
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    obey()
    runpy.run_path(sys.argv[0], run_name="__main__")
