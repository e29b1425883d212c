"""The drill: real commands under faults, for a number of minutes; counts add up over runs.

python -m tests.drill.run --minutes 10 --only kills
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.drill import kills
from tests.drill.faults import break_world
from tests.drill.hostile import serve
from tests.drill.lives import preload
from tests.drill.ranks import break_ranks
from tests.drill.results import Tally, add
from tests.drill.shards import break_saves
from tests.drill.soak import soak
from tests.drill.workload import install

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "drill_epyc_cpu.json"

WEIGHTS = {
    "SIGKILL, trainer": 12,
    "SIGKILL, worker": 3,
    "SIGKILL, group": 2,
    "SIGTERM, trainer": 1,
    "SIGTERM, group": 2,
    "pause, trainer": 1,
    "pause, worker": 1,
}


Part = Callable[[Path, random.Random, float], Tally]


def run_kills(folder: Path, dice: random.Random, until_s: float) -> Tally:
    """Break trainings of one rank."""
    tally = Tally()
    campaign = kills.Campaign(folder, dice)
    while time.monotonic() < until_s:
        campaign.break_one(tally, until_s, WEIGHTS)
    return tally


PARTS: Mapping[str, Part] = {
    "kills": run_kills,
    "hostile inputs": serve,
    "faults": break_world,
    "ranks": break_ranks,
    "shards": break_saves,
    "soak": soak,
}


SHORT: Mapping[str, Part] = {
    "faults": partial(break_world, is_short=True),
    "ranks": partial(break_ranks, is_short=True),
}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of each part")
    parser.add_argument("--only", action="append", choices=list(PARTS))
    parser.add_argument("--short", action="store_true", help="of faults and ranks a part")
    parser.add_argument("--seed", type=int, default=None, help="of the moments and the inputs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file that counts add up in")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    with tempfile.TemporaryDirectory(prefix="drill-") as name:
        install(Path(name) / "site")
        preload()
        for part in options.only or PARTS:
            folder = Path(name) / part
            folder.mkdir()
            begun_s = time.monotonic()
            part_of = SHORT.get(part, PARTS[part]) if options.short else PARTS[part]
            tally = part_of(folder, random.Random(seed), begun_s + 60 * options.minutes)
            add(part, tally, options.results, seconds=time.monotonic() - begun_s)
            print(
                f"{part} (seed {seed}): {sum(tally.tried.values())} tried, {dict(tally.troubles)}"
            )
            for example in tally.examples[:3]:
                print(example)


if __name__ == "__main__":
    main()
