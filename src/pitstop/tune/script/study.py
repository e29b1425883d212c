"""A study of somebody's script: what it builds, what may be changed, and the lines to change."""

import hashlib
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from pitstop.errors import PitstopError, RecordError
from pitstop.measure.host.limits import read_host_limits
from pitstop.records.store import from_json
from pitstop.records.tuning.script import Advice, CodeChange, ScriptSeen, ScriptTuning
from pitstop.records.tuning.study import OTHER_SEEDS, CodePlace, GainRow, Trial, Tuning
from pitstop.records.verify.verification import Claim
from pitstop.tune.journal import JournaledTrials, StudyHead, TrialJournal
from pitstop.tune.knobs import OWN
from pitstop.tune.script.edits import edit_sources
from pitstop.tune.script.interventions import (
    INTERVENTIONS,
    At,
    claim_of_change,
    line_for,
    open_script_space,
)
from pitstop.tune.script.losses import CheckedTrials, LossMeasure
from pitstop.tune.script.trial import ScriptTrials
from pitstop.tune.space import Space
from pitstop.tune.tuning import Budget, Tuner
from pitstop.verify.numbers import loss_distance

JOURNAL: Final = "journal.jsonl"
SEEN: Final = "seen.json"
_MOST_OF_MEMORY: Final = 0.8
_LEFT_BEHIND: Final = (
    "; every trial runs the command anew: take away what a run leaves, or have it write elsewhere"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptStudy:
    """What to tune, and how long."""

    command: tuple[str, ...]
    folder: Path
    """Where the journal lies and trials write."""
    allowed: frozenset[Claim]
    """What a change may claim of the arithmetic."""
    steps: int
    """Measured steps of a trial."""
    trial_limit_s: float
    budget: Budget
    memory_limit_bytes: int | None = None
    """Of all processes of a trial; None for most of what is free when the study begins."""


def run_script_study(study: ScriptStudy, progress: Callable[[Trial], None]) -> ScriptTuning:
    """Tune a script; trials of an earlier start of the same study are not repeated.

    Raises:
        PitstopError: The script cannot be measured as it is, or the folder is another's.
    """
    tell = _once(progress)
    limits = read_host_limits()
    free_bytes = min(psutil.virtual_memory().available, limits.memory_bytes)
    trials = ScriptTrials(
        command=study.command,
        folder=study.folder / "trials",
        seen_path=study.folder / SEEN,
        steps=study.steps,
        limit_s=study.trial_limit_s,
        memory_limit_bytes=study.memory_limit_bytes or int(_MOST_OF_MEMORY * free_bytes),
    )
    journal = TrialJournal(study.folder / JOURNAL, _head(study))
    journaled = JournaledTrials(journal=journal, trials=trials)
    first = _first(journaled, study)
    tell(first)
    seen = _read_seen(trials.seen_path)
    trials.loaders = tuple(site.place for site in seen.train_loaders)
    at = At(
        seen=seen,
        cores=limits.cores,
        is_linux=sys.platform == "linux",
        has_losses=bool(first.losses),
    )
    checked = _checked(journaled, first, seen, tell)
    space = open_script_space(at, study.allowed)
    tuning = Tuner(
        source=shlex.join(study.command),
        space=space,
        claim_of=claim_of_change,
        trials=checked,
        budget=study.budget,
        beyond_noise=True,
        is_known=journal.has,
        progress=tell,
    ).run()
    return _described(tuning, space, seen, measure=checked.measure, script=script_of(study.command))


def _once(progress: Callable[[Trial], None]) -> Callable[[Trial], None]:
    """Tell of each trial when it has ended; the tuner is given the first ones a second time."""
    told: list[Trial] = []

    def tell(trial: Trial) -> None:
        if not any(trial is one for one in told):
            told.append(trial)
            progress(trial)

    return tell


def script_of(command: Sequence[str]) -> Path | None:
    """Give the file that a command runs; None where it names none."""
    return next((Path(word).absolute() for word in command if Path(word).suffix == ".py"), None)


def _head(study: ScriptStudy) -> StudyHead:
    """Name all that trials have in common: the command, where it runs, and the script as it is."""
    parts = [shlex.join(study.command), str(Path.cwd())]
    for word in study.command:
        with suppress(OSError, ValueError):
            if Path(word).suffix == ".py":
                parts.append(hashlib.sha256(Path(word).read_bytes()).hexdigest())
    return StudyHead(config="\n".join(parts), steps=study.steps)


def _first(trials: JournaledTrials, study: ScriptStudy) -> Trial:
    """Run the script as it is.

    Raises:
        PitstopError: It cannot be measured.
    """
    first = trials.run(OWN)
    if first.end != "measured":
        more = "; --trial-minutes gives it longer" if first.end == "timed out" else ""
        raise PitstopError(
            f"{shlex.join(study.command)} cannot be measured as it is ({first.end}): "
            f"{first.reason}{more}"
        )
    return first


def _read_seen(path: Path) -> ScriptSeen:
    try:
        return from_json(path.read_text(encoding="utf-8"), ScriptSeen)
    except (OSError, RecordError) as error:
        raise PitstopError(
            f"{path} is missing or damaged, though its journal has trials; remove {path.parent}"
        ) from error


def _checked(
    trials: JournaledTrials, first: Trial, seen: ScriptSeen, progress: Callable[[Trial], None]
) -> CheckedTrials:
    """Run the script as it is once more, and with other seeds: the measure of every loss.

    Raises:
        PitstopError: It can be run once only.
    """
    again, other = (_again(trials, untouched, progress) for untouched in (OWN, OTHER_SEEDS))
    measure = LossMeasure(
        base=first.losses,
        repeat_distance=loss_distance(first.losses, again.losses),
        seed_distance=loss_distance(first.losses, other.losses),
        draws=any(site.draws for site in seen.train_loaders),
    )
    return CheckedTrials(trials=trials, measure=measure, untouched=[first, again])


def _again(
    trials: JournaledTrials, overrides: Sequence[str], progress: Callable[[Trial], None]
) -> Trial:
    trial = trials.run(overrides)
    progress(trial)
    if trial.end == "measured":
        return trial
    raise PitstopError(
        f"it was measured once and not again ({trial.end}): {trial.reason}"
        + (_LEFT_BEHIND if trial.end in ("crashed", "refused") else "")
    )


def with_tried(advice: Advice, tuning: Tuning, space: Space) -> Advice:
    """Say what was tried for a finding and held no gain, in place of the advice to do it."""
    tried = [
        " ".join(choice)
        for knob, choices in zip(space.knobs, space.choices, strict=True)
        for choice in choices
        if advice.code in knob.asked_by and choice != OWN
        if any(set(choice) <= set(trial.overrides) for trial in tuning.trials)
    ]
    held_none = f"tried, and no gain held: {', '.join(tried)}"
    return replace(advice, remedy=held_none) if tried else advice


def _described(
    tuning: Tuning, space: Space, seen: ScriptSeen, *, measure: LossMeasure, script: Path | None
) -> ScriptTuning:
    edited = edit_sources(tuning, seen, script)
    changes = tuple(_change(row, tuning, seen) for row in tuning.rows[1:])
    fixed = {
        code
        for row in tuning.rows[1:]
        for each in INTERVENTIONS
        if each.name == row.knob
        for code in each.asked_by
    }
    return ScriptTuning(
        command=tuning.source,
        tuning=tuning,
        seen=seen,
        changes=changes,
        advice=tuple(
            with_tried(each, tuning, space) for each in seen.findings if each.code not in fixed
        ),
        repeat_distance=measure.repeat_distance,
        seed_distance=measure.seed_distance,
        diff=edited.diff(),
        not_in_diff=edited.left,
    )


def _change(row: GainRow, tuning: Tuning, seen: ScriptSeen) -> CodeChange:
    measured = [each for each in tuning.trials if each.end == "measured"]
    places = tuple(
        dict.fromkeys(
            place
            for trial in measured
            for place in trial.changed
            if place.change in row.overrides and place.place
        )
    )
    notes = [each.loss_note for each in measured if set(row.overrides) <= set(each.overrides)]
    name = " and ".join(seen.models_called(places[0].name)) if places else ""
    return CodeChange(
        text=line_for(row.overrides, seen, name=name),
        places=_lines(places),
        gain=row.gain,
        gain_low=row.gain_low,
        gain_high=row.gain_high,
        loss=notes[-1] if notes else "",
    )


def _lines(places: Sequence[CodePlace]) -> tuple[CodePlace, ...]:
    """Give each line once, whatever number of changes took hold there."""
    return tuple({one.place: one for one in places}.values())
