"""Starts a script once for each rank, as its author does by hand: ``-s RANKS -r RANK``."""

import subprocess
import sys


def main() -> int:
    ranks, *words = sys.argv[1:]
    started = [
        subprocess.Popen([sys.executable, *words, "-s", ranks, "-r", str(rank)])
        for rank in range(int(ranks))
    ]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main())
