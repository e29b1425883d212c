"""Plans of other people's scripts against a count of what the scripts then saved.

    python benchmarks/plan_scripts.py --public CHECKOUTS --python PYTHON --output RESULTS.json

Each script runs at its batch under `pitstop plan`; then at twice the batch, by its own flag, under
`saved_oracle.py`. Both are of the processor: what a GPU keeps otherwise (scores of attention, masks
of dropout) is left as it is. Which scripts and what counts as right was written down before the
first run (docs/lab-notes.md). Checkouts are as for the zoo (tests/zoo/run.py).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pitstop.plan.script.batch import certain_share, find_batch
from pitstop.plan.script.choices import ScriptChoices
from pitstop.plan.script.planned import largest_step, read_recorded
from tests.zoo.generate import generate
from tests.zoo.runs import Zoo
from tests.zoo.table import PUBLIC, Row, read_table

ROOT = Path(__file__).parents[1]
ORACLE = Path(__file__).parent / "saved_oracle.py"
RIGHT = 0.10
STEPS = 24
PROBE = """
import sys
from pathlib import Path
from pitstop.measure.script.launch import record_memory
record_memory(sys.argv[2:], Path(sys.argv[1]))
"""


@dataclass(frozen=True)
class Case:
    """A script at a batch, and at twice that."""

    name: str
    row: str
    """Row of the zoo whose checkout and data it has."""
    batch: int
    args: str
    """With {} for the batch."""
    folder: str | None = None
    script: str | None = None
    batch_size: int | None = None
    """What the user says, where the plan cannot tell it."""


CASES = (
    Case("mnist", "mnist", 16, "--epochs 3 --batch-size {} --test-batch-size 100"),
    Case("mnist_rnn", "mnist", 16, "--epochs 3 --batch-size {}", "mnist_rnn"),
    Case("vae", "mnist", 16, "--epochs 1 --batch-size {} --no-accel", "vae"),
    Case("siamese", "siamese", 24, "--epochs 2 --batch-size {}"),
    Case(
        "word language model, LSTM",
        "word language model",
        20,
        "--epochs 2 --emsize 64 --nhid 64 --bptt 20 --batch_size {}",
    ),
    Case(
        "word language model, Transformer",
        "word language model",
        20,
        "--epochs 2 --emsize 64 --nhid 64 --bptt 24 --model Transformer --use-optimizer "
        "--batch_size {}",
        batch_size=20,
    ),
    Case(
        "nanoGPT",
        "nanoGPT",
        12,
        "config/train_shakespeare_char.py --device=cpu --compile=False --dtype=float32 "
        "--eval_iters=1 --log_interval=1 --block_size=64 --batch_size={} --n_layer=4 --n_head=4 "
        "--n_embd=128 --eval_interval=250 --max_iters=119 --dropout=0.0",
    ),
    Case("minGPT adder", "minGPT", 64, "--trainer.num_workers=0 --trainer.batch_size={}"),
    Case("makemore, transformer", "makemore", 32, "--max-steps 120 -n 1 --batch-size {}"),
    Case("makemore, GRU", "makemore", 32, "--max-steps 120 -n 1 --type gru --batch-size {}"),
    Case("wgan_gp", "wgan-gp", 16, "--n_epochs 2 --sample_interval 1000 --batch_size {}"),
    Case(
        "dcgan",
        "wgan-gp",
        16,
        "--n_epochs 2 --sample_interval 1000 --batch_size {}",
        "implementations/dcgan",
        "dcgan.py",
    ),
    Case("cifar100, squeezenet", "cifar100", 4, "-net squeezenet -b {}"),
    Case("CVAE", "CVAE", 64, "--epochs 2 --print_every 1000 --batch_size {}"),
    Case("U-Net", "U-Net", 2, "--epochs 3 --batch-size {} --scale 0.25"),
    Case(
        "SimCLR",
        "SimCLR",
        16,
        "-data x -dataset-name cifar10 -b {} --epochs 2 -j 1 --disable-cuda --log-every-n-steps 10",
    ),
)


def main() -> None:
    """Run all cases, or those whose names are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    table = {row.name: row for row in read_table(PUBLIC)}
    zoo = Zoo(device="cpu", public=options.public.resolve(), python=options.python)
    rows = []
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        rows.append(judged(zoo, table[case.row], case))
        print(json.dumps(rows[-1]), flush=True)
    counts = {word: sum(row["outcome"] == word for row in rows) for word in OUTCOMES}
    report = {
        "what": "bytes saved for backward at twice the batch, predicted and counted",
        "hardware": "2-core AMD EPYC",
        "torch": torch.__version__,
        "counts": counts,
        "rows": rows,
    }
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(counts)


OUTCOMES = ("right", "wrong", "refused", "did not run")


def judged(zoo: Zoo, base: Row, case: Case) -> dict[str, Any]:
    """Plan a case, count it at twice the batch, compare."""
    row = replace(
        base, folder=case.folder or base.folder, script=case.script or base.script, args=()
    )
    generate(base.data, base.working_folder(zoo.public), python=zoo.python)
    planned = plan(zoo, row, case)
    counted = count(zoo, row, case)
    found = {"script": case.name, "batch": case.batch, **planned, "counted_bytes": counted}
    if counted is None:
        return {**found, "outcome": "did not run"}
    if "planned_bytes" not in planned:
        return {**found, "outcome": "refused"}
    error = planned["planned_bytes"] / counted - 1
    return {**found, "error": error, "outcome": "right" if abs(error) <= RIGHT else "wrong"}


def plan(zoo: Zoo, row: Row, case: Case) -> dict[str, Any]:
    """Record the script's steps at its batch; predict twice that."""
    with tempfile.TemporaryDirectory(prefix="plan-scripts-") as name:
        words = [row.script, *case.args.format(case.batch).split()]
        ended = run(zoo, row, [sys.executable, "-c", PROBE, name, zoo.python, *words])
        memory = read_recorded(Path(name))
    if memory is None or not memory.steps:
        why = ended if memory is None else memory.problem or "no whole step"
        return {"refusal": why}
    step = largest_step(memory)
    batch = find_batch(memory, step, case.batch_size)
    if batch is None:
        return {"refusal": "nothing tells the batch"}
    choices = ScriptChoices(memory, step, batch, on_gpu=False)
    twice = replace(choices.own, batch_size=2 * batch.samples)
    return {
        "found_batch": batch.samples,
        "certain_share": certain_share(step, batch),
        "recorded_bytes": choices.peak(choices.own).most_saved_bytes,
        "planned_bytes": choices.peak(twice).most_saved_bytes,
    }


def count(zoo: Zoo, row: Row, case: Case) -> int | None:
    """Count what the script saves at twice the batch; None where it did not run."""
    with tempfile.TemporaryDirectory(prefix="plan-scripts-") as name:
        out = Path(name) / "saved.json"
        words = [row.script, *case.args.format(2 * case.batch).split()]
        run(zoo, row, [zoo.python, str(ORACLE), str(out), str(STEPS), *words])
        return json.loads(out.read_text())["saved_bytes"] if out.exists() else None


def run(zoo: Zoo, row: Row, command: Sequence[str]) -> str:
    """Run a command in a row's folder and environment; give the last line that it wrote."""
    variables = [f"{name}={value}" for name, value in zoo.environment(row).items()]
    ended = subprocess.run(
        ["env", *variables, *command],
        cwd=row.working_folder(zoo.public),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=420,
        check=False,
    )
    return (ended.stderr.strip().splitlines() or [""])[-1]


if __name__ == "__main__":
    main()
