r"""Tunes scripts of others from outside, then runs each bare, as chosen, and as edited, in turns.

    python -m benchmarks.tune_scripts --accept FOLDER --public CHECKOUTS [--only NAME ...]
    python -m benchmarks.tune_scripts --accept FOLDER --public CHECKOUTS --lanes cpu --cores 2-15 \
        --seconds 230

`FOLDER` holds the acceptance scripts, `CHECKOUTS` the repositories of `tests/zoo/public.toml` at
their commits, a folder each. Each script's study has a journal under `--work-dir`: what was cut off
goes on. The turns come after the study and are not part of it: the untouched script, the script
changed from outside, and a copy beside it into which the printed diff was put. Every turn is
written down when it has ended.

With `--lanes cpu` six scripts run in four lanes side by side, each on cores of its own; with
`--lanes gpu` six for a GPU in three, which share it: what a lane holds runs one after the other,
each for its share of the time. A script whose time is over is ended; the same command goes on with
it, and leaves alone what had all its turns.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from benchmarks.tune_surface import cores_named

from pitstop.records.store import to_dict
from pitstop.records.tuning.script import ScriptTuning
from pitstop.records.tuning.study import Trial
from pitstop.report.script_tuning import change_lines
from pitstop.tune.script.edits import edit_sources
from pitstop.tune.script.study import ScriptStudy, run_script_study, script_of
from pitstop.tune.script.trial import ScriptTrials
from pitstop.tune.tuning import Budget
from pitstop.verify.numbers import loss_distance
from tests.zoo.generate import generate
from tests.zoo.table import PUBLIC, STANDINS, Row, read_table

RESULT: Final = Path(__file__).parent / "results" / "tune_scripts_h200.json"
ACCEPTED: Final = ("cpu_module_transform", "cpu_noop_compile", "cpu_prefetch_between")
PICTURES: Final = "gpu_pictures"
SMALL: Final = "gpu_small"
SMALL_ARGS: Final = ["workers", "fork"]
TRAINER: Final = "gpu_hf"
OF_THE_ZOO: Final = ("mnist", "CVAE", "SRCNN", "nanoGPT", "pytorch-cifar")
EDITED: Final = "_edited"
Lane = tuple[int, tuple[str, ...]]
LANES: Final[dict[str, tuple[Lane, ...]]] = {
    "cpu": (
        (4, ("cpu_module_transform",)),
        (2, ("SRCNN",)),
        (2, ("cpu_noop_compile", "CVAE")),
        (2, ("cpu_prefetch_between", "mnist")),
    ),
    "gpu": (
        (8, (PICTURES, "nanoGPT")),
        (4, (SMALL, TRAINER)),
        (4, ("pytorch-cifar", "mnist")),
    ),
}
"""Most cores of each lane, and its scripts, one after the other."""
OWN_ARGS: Final = {"nanoGPT": ("--compile=False",)}
"""Beside those of the zoo on a GPU: what its authors name for who cannot compile."""
SEARCH_SHARE: Final = 0.4
"""Of a script's time; then come the table and the turns."""

Side = Literal["bare", "outside", "edited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script to tune."""

    name: str
    command: tuple[str, ...]
    folder: Path
    env: dict[str, str]
    data: tuple[str, ...] = ()
    """Generated, where it is missing."""


def scripts(options: argparse.Namespace) -> list[Script]:
    """All of them."""
    accept, public = options.accept.absolute(), options.public.absolute()
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    found = [
        Script(name=name, command=(sys.executable, f"{name}.py"), folder=accept, env=hidden)
        for name in ACCEPTED
    ]
    on_gpu = ((PICTURES, [str(options.pictures.absolute())]), (SMALL, SMALL_ARGS), (TRAINER, []))
    for name, words in on_gpu:
        command = (sys.executable, f"{name}.py", *words)
        found.append(Script(name=name, command=command, folder=accept, env={}))
    rows = [row for row in read_table(PUBLIC) if row.name in OF_THE_ZOO]
    return found + [_public(row, public, on_gpu=options.gpu) for row in rows]


def _public(row: Row, public: Path, *, on_gpu: bool) -> Script:
    device = "cuda" if on_gpu and "cuda" in row.devices else "cpu"
    words = row.words(device) + (OWN_ARGS.get(row.name, ()) if on_gpu else ())
    path = os.pathsep.join((str(STANDINS), os.environ.get("PYTHONPATH", "")))
    # The seed is that of the stand-ins' pictures.
    env = {**row.env, "ZOO_SEED": "0", "PYTHONPATH": path}
    env |= dict(row.cuda_env) if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    return Script(
        name=row.name,
        command=(sys.executable, *words),
        folder=row.working_folder(public),
        env=env,
        data=row.data,
    )


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


def tuned(script: Script, options: argparse.Namespace, keep: Callable[[Any], None]) -> None:
    """Tune one script; hold what was chosen, and the edited copy, against the untouched one."""
    end_s = time.monotonic() + options.seconds
    folder = options.work_dir.absolute() / script.name
    study = ScriptStudy(
        command=script.command,
        folder=folder,
        allowed=frozenset({"exact", "rounding"}),
        steps=options.steps,
        trial_limit_s=options.trial_seconds,
        budget=Budget(most_trials=options.trials, most_s=options.search_seconds),
    )
    found = run_script_study(study, lambda trial: print(_line(script, trial), flush=True))
    edited, left = _edited(found, script)
    result: dict[str, Any] = {
        "command": shlex.join(word.replace(sys.executable, "python") for word in script.command),
        "cores": len(os.sched_getaffinity(0)),
        "device": found.seen.device,
        "chosen": list(found.tuning.overrides),
        "lines": [_without_folders(line, script) for line in change_lines(found)],
        "diff": _without_folders(found.diff, script),
        "not_in_diff": list(left),
        "seed_distance": found.seed_distance,
        "repeat_distance": found.repeat_distance,
        "turns": [],
        "study": _study(found, script),
    }
    keep(result)
    if found.tuning.overrides:
        _take_turns(script, found, edited, options, end_s, result, keep)


def _take_turns(
    script: Script,
    found: ScriptTuning,
    edited: tuple[str, ...] | None,
    options: argparse.Namespace,
    end_s: float,
    result: dict[str, Any],
    keep: Callable[[Any], None],
) -> None:
    places = tuple(site.place for site in found.seen.train_loaders)
    folder = options.work_dir.absolute() / script.name
    plain = _trials(script.command, folder, options, places)
    variables = tuple(word for word in found.tuning.overrides if word.startswith("env."))
    sides: dict[Side, Callable[[], Trial]] = {
        "bare": lambda: plain.run(()),
        "outside": lambda: plain.run(found.tuning.overrides),
    }
    if edited is not None:
        by_hand = _trials(edited, folder / "edited", options, None)
        sides["edited"] = lambda: by_hand.run(variables)
    names = list(sides)
    for turn in range(options.turns):
        if time.monotonic() > end_s:
            return
        order = names[turn % len(names) :] + names[: turn % len(names)]
        trials: dict[Side, Trial] = {name: sides[name]() for name in order}
        result["turns"].append({name: _side(trials, name) for name in names})
        for name in names[1:]:
            gains = [each[name]["speedup"] for each in result["turns"]]
            result[f"speedup_{name}"] = median(gains)
        keep(result)
        print(f"  {script.name} turn {turn + 1}: {result['turns'][-1]}", flush=True)


def _side(trials: dict[Side, Trial], name: Side) -> dict[str, Any]:
    bare, own = trials["bare"], trials[name]
    speedup = bare.wall_s / own.wall_s if bare.wall_s and own.wall_s else 0.0
    return {
        "step_s": own.wall_s,
        "speedup": speedup,
        "loss_distance": loss_distance(bare.losses, own.losses),
        "peak_device_bytes": own.peak_device_bytes,
        "end": own.end if not own.reason else f"{own.end}: {own.reason}",
    }


def _edited(found: ScriptTuning, script: Script) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Put the printed diff into a copy beside the script; give its command, and what is left."""
    path = script_of(script.command)
    edits = edit_sources(found.tuning, found.seen, path)
    others = [str(each) for each in edits.after if each != path]
    if path is None or others or edits.left:
        return None, (*edits.left, *others)
    copy = path.with_name(f"{path.stem}{EDITED}.py")
    copy.write_text(edits.after.get(path) or path.read_text(encoding="utf-8"), encoding="utf-8")
    at = next(word for word in script.command if Path(word).absolute() == path)
    return tuple(str(copy) if word == at else word for word in script.command), ()


def _trials(
    command: tuple[str, ...],
    folder: Path,
    options: argparse.Namespace,
    loaders: tuple[str, ...] | None,
) -> ScriptTrials:
    folder.mkdir(parents=True, exist_ok=True)
    return ScriptTrials(
        command=command,
        folder=folder / "turns",
        seen_path=folder / "seen-again.json",
        steps=options.steps,
        limit_s=options.trial_seconds,
        memory_limit_bytes=None,
        loaders=loaders,
    )


def _study(found: ScriptTuning, script: Script) -> dict[str, Any]:
    text = json.dumps(to_dict(found))
    return json.loads(_without_folders(text, script))


def _without_folders(text: str, script: Script) -> str:
    """Leave out where things lie on this machine."""
    for folder in (sys.executable, f"{script.folder.absolute()}/"):
        text = text.replace(folder, "python" if folder == sys.executable else "")
    return text


def _line(script: Script, trial: Trial) -> str:
    time_text = f"{1000 * trial.wall_s:.1f} ms" if trial.wall_s else f"{trial.end}: {trial.reason}"
    changes = " ".join(trial.overrides) or "as it is"
    return f"  {script.name} {changes}: {time_text} {trial.loss_note} ({trial.took_s:.1f} s)"


def run_lanes(options: argparse.Namespace) -> None:
    """Run the lanes side by side, what is in a lane one after the other."""
    parts = options.work_dir.absolute() / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + options.seconds
    free = cores_named(options.cores) or sorted(os.sched_getaffinity(0))
    with ThreadPoolExecutor() as pool:
        running: list[Future[None]] = []
        for count, names in LANES[options.lanes]:
            wanted = [name for name in names if not options.only or name in options.only]
            cores, free = (free[:count], free[count:]) if wanted else ([], free)
            if wanted and not cores:
                print(f"no cores are left for {', '.join(wanted)}", flush=True)
                continue
            running.append(pool.submit(_run_lane, wanted, cores, options, end_s))
        while not all(each.done() for each in running):
            wait(running, timeout=3)
            _merge(parts, options)
    _merge(parts, options)
    for each in running:
        each.result()


def _is_done(name: str, options: argparse.Namespace) -> bool:
    """Whether an earlier start of the same command has measured all of a script's turns."""
    part = options.work_dir.absolute() / "parts" / f"{name}.json"
    try:
        found = json.loads(part.read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError):
        return False
    return not found["chosen"] or len(found["turns"]) >= options.turns


def _run_lane(
    names: Sequence[str], cores: Sequence[int], options: argparse.Namespace, end_s: float
) -> None:
    """Give each script its share of what is left; end it when that is over."""
    names = [name for name in names if not _is_done(name, options)]
    for at, name in enumerate(names):
        share_s = (end_s - time.monotonic()) / (len(names) - at)
        started = _start(name, cores, options, share_s)
        try:
            with suppress(subprocess.TimeoutExpired):
                started.wait(share_s)
        finally:
            _end(started)


def _start(
    name: str, cores: Sequence[int], options: argparse.Namespace, share_s: float
) -> subprocess.Popen[bytes]:
    parts = options.work_dir.absolute() / "parts"
    words = ["taskset", "-c", ",".join(map(str, cores))]
    words += [sys.executable, "-m", "benchmarks.tune_scripts", "--only", name]
    for option in ("accept", "public", "pictures", "steps", "trials", "turns", "trial_seconds"):
        words += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    words += ["--seconds", str(share_s), "--search-seconds", str(SEARCH_SHARE * share_s)]
    words += ["--work-dir", str(options.work_dir), "--out", str(parts / f"{name}.json")]
    words += ["--gpu"] if options.lanes == "gpu" else []
    with (parts / f"{name}.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _end(started: subprocess.Popen[bytes]) -> None:
    if started.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(started.pid, number)
        with suppress(subprocess.TimeoutExpired):
            started.wait(3)


def _merge(parts: Path, options: argparse.Namespace) -> None:
    """Put the results of all lanes into one file, and their logs beside it."""
    found: dict[str, Any] = {}
    for path in sorted(parts.glob("*.json")):
        with suppress(ValueError):
            found |= json.loads(path.read_text(encoding="utf-8"))
    head = {"hardware": options.hardware, "cores": options.cores}
    text = json.dumps({**head, "scripts": found}, indent=1)
    options.out.write_text(f"{text}\n", encoding="utf-8")
    logs = [path.read_text(errors="replace") for path in sorted(parts.glob("*.log"))]
    options.out.with_suffix(".log").write_text("\n".join(logs), encoding="utf-8")


def run_some(options: argparse.Namespace) -> None:
    """Tune what is named, one after the other."""
    for script in scripts(options):
        if options.only and script.name not in options.only:
            continue
        print(script.name, flush=True)
        generate(script.data, script.folder, python=sys.executable)

        def keep(result: Any, name: str = script.name) -> None:
            known = json.loads(options.out.read_text()) if options.out.exists() else {}
            known[name] = result
            part = options.out.with_suffix(".part")
            part.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            part.replace(options.out)

        try:
            with inside(script):
                tuned(script, options, keep)
        except Exception as error:  # noqa: BLE001 - the next script is no worse for it
            print(f"  {script.name}: {error}", flush=True)


def main() -> None:
    """Tune what is named, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", type=Path, required=True)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, default=Path("pics"))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--lanes", choices=sorted(LANES))
    parser.add_argument("--cores", default="", help="for the lanes, as taskset names them")
    parser.add_argument("--gpu", action="store_true", help="what can, on the GPU")
    parser.add_argument("--hardware", default="")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--trials", type=int, default=18)
    parser.add_argument("--trial-seconds", type=float, default=240.0)
    parser.add_argument("--search-seconds", type=float, default=1800.0)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--work-dir", type=Path, default=Path("runs/tune-scripts"))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    options.out = options.out.absolute()
    run = run_lanes if options.lanes else run_some
    run(options)


if __name__ == "__main__":
    main()
