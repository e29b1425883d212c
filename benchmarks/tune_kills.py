"""Kills a tuner of a script at random moments, and says what was lost, repeated or left behind.

    python benchmarks/tune_kills.py --kills 20

The script is the planted one of the tests, which counts its own starts. After every kill the
journal must begin with what it held before, and no process of the script may be alive; at the end
no more trials may have been started than the journal holds and kills cut off.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

from tests.unit.tune.script.test_study import kill_often


def main() -> None:
    """Kill and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    done, wrong, rounds = 0, [], 0
    # A study that ended before it was killed often enough is followed by another.
    while done < options.kills:
        with tempfile.TemporaryDirectory(prefix="tune-kills-") as folder:
            dice = random.Random(options.seed + rounds)
            killed, found = kill_often(Path(folder), kills=options.kills - done, draw=dice)
        done, wrong, rounds = done + killed, [*wrong, *found], rounds + 1
    print(json.dumps({"kills": done, "studies": rounds, "wrong": wrong}))


if __name__ == "__main__":
    main()
