"""Tunes six scripts of others from outside, then runs each bare and as chosen in pairs.

    python benchmarks/tune_scripts.py --accept FOLDER --public CHECKOUTS [--only NAME ...]
    python benchmarks/tune_scripts.py ... --only NAME --by-hand EDITED.py

`FOLDER` holds the acceptance scripts, `CHECKOUTS` the repositories of `tests/zoo/public.toml` at
their commits. Each script's study has a journal under `--work-dir`: what was cut off goes on. The
pairs come after the study and are not part of it: what it chose is held against the untouched
script once more, speed and losses. With `--by-hand` the pairs are the untouched script and a copy,
beside it, in which somebody changed the printed lines.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from pitstop.records.store import to_dict
from pitstop.records.tuning.script import ScriptTuning
from pitstop.records.tuning.study import Trial
from pitstop.report.script_tuning import change_lines
from pitstop.tune.script.study import ScriptStudy, run_script_study
from pitstop.tune.script.trial import ScriptTrials
from pitstop.tune.tuning import Budget
from pitstop.verify.numbers import loss_distance
from tests.zoo.generate import generate
from tests.zoo.table import PUBLIC, STANDINS, read_table

RESULT: Final = Path(__file__).parent / "results" / "tune_scripts_epyc_cpu.json"
ACCEPTED: Final = ("cpu_module_transform", "cpu_noop_compile", "cpu_prefetch_between")
OF_THE_ZOO: Final = ("mnist", "CVAE", "SRCNN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script to tune."""

    name: str
    command: tuple[str, ...]
    folder: Path
    env: dict[str, str]
    data: tuple[str, ...] = ()
    """Generated, where it is missing."""


def scripts(accept: Path, public: Path) -> list[Script]:
    """All six."""
    found = [
        Script(name=name, command=(sys.executable, f"{name}.py"), folder=accept, env={})
        for name in ACCEPTED
    ]
    for row in read_table(PUBLIC):
        if row.name in OF_THE_ZOO:
            command = (sys.executable, *row.words("cpu"))
            path = os.pathsep.join((str(STANDINS), os.environ.get("PYTHONPATH", "")))
            # The seed is that of the stand-ins' pictures.
            env = {**row.env, "ZOO_SEED": "0", "PYTHONPATH": path}
            folder = row.working_folder(public)
            found.append(
                Script(name=row.name, command=command, folder=folder, env=env, data=row.data)
            )
    return found


@contextmanager
def inside(script: Script) -> Iterator[None]:
    """Be where the script runs, with its environment."""
    before, here = dict(os.environ), Path.cwd()
    os.chdir(script.folder)
    os.environ.update(script.env)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


def tuned(script: Script, options: argparse.Namespace) -> dict[str, Any]:
    """Tune one script, and hold what was chosen against the untouched one in pairs."""
    folder = options.work_dir.absolute() / script.name
    study = ScriptStudy(
        command=script.command,
        folder=folder,
        allowed=frozenset({"exact", "rounding"}),
        steps=options.steps,
        trial_limit_s=240.0,
        budget=Budget(most_trials=options.trials, most_s=60 * options.minutes),
    )
    found = run_script_study(study, lambda trial: print(_line(trial), flush=True))
    places = tuple(site.place for site in found.seen.train_loaders)
    trials = _trials(script.command, folder, options, places)
    chosen = found.tuning.overrides
    sides = (lambda: trials.run(()), lambda: trials.run(chosen))
    pairs = [_pair(*sides, turn) for turn in range(options.pairs if chosen else 0)]
    return {
        "command": shlex.join(word.replace(sys.executable, "python") for word in script.command),
        "chosen": list(chosen),
        "lines": [_without_folders(line, script) for line in change_lines(found)],
        "pairs": pairs,
        "speedup": median(pair["speedup"] for pair in pairs) if pairs else None,
        "seed_distance": found.seed_distance,
        "repeat_distance": found.repeat_distance,
        "study": _study(found, script),
    }


def by_hand(script: Script, options: argparse.Namespace) -> dict[str, Any]:
    """Hold a copy with the printed lines changed against the untouched script."""
    folder = options.work_dir.absolute() / f"{script.name}-by-hand"
    program, _, *rest = script.command
    variables = dict(word.split("=", 1) for word in options.variables)
    bare = _trials(script.command, folder / "bare", options, None)
    edited = _trials((program, str(options.by_hand), *rest), folder / "edited", options, None)
    changes = tuple(f"env.{name}={value}" for name, value in variables.items())
    sides = (lambda: bare.run(()), lambda: edited.run(changes))
    pairs = [_pair(*sides, turn) for turn in range(options.pairs)]
    return {
        "pairs": pairs,
        "variables": variables,
        "speedup": median(pair["speedup"] for pair in pairs),
    }


def _trials(
    command: tuple[str, ...],
    folder: Path,
    options: argparse.Namespace,
    loaders: tuple[str, ...] | None,
) -> ScriptTrials:
    folder.mkdir(parents=True, exist_ok=True)
    return ScriptTrials(
        command=command,
        folder=folder / "pairs",
        seen_path=folder / "seen-again.json",
        steps=options.steps,
        limit_s=240.0,
        memory_limit_bytes=None,
        loaders=loaders,
    )


def _pair(
    run_bare: Callable[[], Trial], run_changed: Callable[[], Trial], turn: int
) -> dict[str, Any]:
    """Run both, the other one first in every second pair."""
    if turn % 2 == 0:
        bare, changed = run_bare(), run_changed()
    else:
        changed, bare = run_changed(), run_bare()
    return {
        "bare_s": bare.wall_s,
        "changed_s": changed.wall_s,
        "speedup": bare.wall_s / changed.wall_s if bare.wall_s and changed.wall_s else 0.0,
        "loss_distance": loss_distance(bare.losses, changed.losses),
        "ends": [bare.end, changed.end],
    }


def _study(found: ScriptTuning, script: Script) -> dict[str, Any]:
    text = json.dumps(to_dict(found))
    return json.loads(_without_folders(text, script))


def _without_folders(text: str, script: Script) -> str:
    """Leave out where things lie on this machine."""
    for folder in (sys.executable, f"{script.folder.absolute()}/"):
        text = text.replace(folder, "python" if folder == sys.executable else "")
    return text


def _line(trial: Trial) -> str:
    time = f"{1000 * trial.wall_s:.1f} ms" if trial.wall_s else f"{trial.end}: {trial.reason}"
    return f"  {' '.join(trial.overrides) or 'as it is'}: {time} {trial.loss_note}"


def main() -> None:
    """Tune what is named, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", type=Path, required=True)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--work-dir", type=Path, default=Path("runs/tune-scripts"))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--by-hand", type=Path)
    parser.add_argument("--variables", nargs="*", default=[], help="of the edited script")
    options = parser.parse_args()
    for script in scripts(options.accept.absolute(), options.public.absolute()):
        if options.only and script.name not in options.only:
            continue
        print(script.name, flush=True)
        generate(script.data, script.folder, python=sys.executable)
        known = json.loads(options.out.read_text()) if options.out.exists() else {}
        with inside(script):
            if options.by_hand:
                known[script.name]["by_hand"] = by_hand(script, options)
            else:
                known[script.name] = tuned(script, options)
        options.out.write_text(json.dumps(known, indent=1) + "\n")
        print(f"  {known[script.name]['speedup']} {known[script.name]['lines']}", flush=True)


if __name__ == "__main__":
    main()
