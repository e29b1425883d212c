"""Start the training as a process of its own, wait for it, and pass on how it ended."""

import argparse
import subprocess
import sys
from pathlib import Path

TRAINING = Path(__file__).with_name("exit_three.py")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    print("starting the training", flush=True)
    command = [sys.executable, str(TRAINING), "--steps", str(args.steps)]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
