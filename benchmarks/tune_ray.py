"""A study on a local Ray cluster of two workers, of which one process and one node are killed.

What is asked is whether it finishes and whether its journal is complete; times are of a machine
that others use as well. Needs ray (``pip install ray``).

    python -m benchmarks.tune_ray --hardware "2-core AMD EPYC"
"""

import argparse
import importlib.metadata
import json
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.integration.test_tune_on_ray import sabotaged_study

RESULT: Final = Path(__file__).parent / "results" / "tune_ray_epyc_cpu.json"


def main() -> None:
    """Run the study and write what its journal holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hardware", required=True)
    hardware = parser.parse_args().hardware
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        tuning, killed, journal, left = sabotaged_study(Path(place))
    result = {
        "hardware": hardware,
        "ray": importlib.metadata.version("ray"),
        "nodes": 2,
        "killed": killed,
        "trials": len(tuning.trials),
        "stopped": tuning.stopped,
        "journal": [
            {key: line[key] for key in ("overrides", "end", "reason", "took_s")} for line in journal
        ],
        "processes_left": left,
        "wall_s": round(time.monotonic() - begun, 1),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
