"""Two commands of anybody's verified by the losses and metrics that they print."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Final

from pitstop.errors import PitstopError, RecordError
from pitstop.logs.read import read_logs
from pitstop.records.run import RankRecord, ScalarSeries
from pitstop.records.verify.quality import QualityPoint
from pitstop.records.verify.trial import TrialEnd, TrialResult
from pitstop.records.verify.verification import Verification
from pitstop.verify.checks import falls
from pitstop.verify.judge import Findings, broken_trial, conclude
from pitstop.verify.noninferiority import Question, judge_noninferiority
from pitstop.verify.numbers import compare_exactly
from pitstop.verify.runner import OUTPUT, Program
from pitstop.verify.study import Study

SEED: Final = "{seed}"
"""Stands in a command for the number of the repeat: 0, 1, ..."""

MARGIN_SHARE: Final = 0.05
"""Of the baseline's mean, where nobody gives a margin: a printed loss has no unit to go by."""

_LOWER_IS_BETTER: Final = re.compile(
    r"loss|err(or)?\b|ppl|perplexity|mae\b|mse\b|fid\b|lpips|wer\b", re.IGNORECASE
)
_LOSS: Final = re.compile(r"(^|[/_ ])(train[/_ ])?loss$", re.IGNORECASE)
_HELD_OUT: Final = re.compile(r"^(val|valid|validation|eval|test)[/_ ]", re.IGNORECASE)
# One printed loss is that of a few samples; the last tenth of them is the end of the run.
_LAST: Final = 10
_NAMED_NUMBER: Final = re.compile(
    r"([a-z][\w@/. -]*?)\s*[:=]?\s*(-?\d+\.?\d*(?:e[-+]?\d+)?)(?![\w.])", re.IGNORECASE
)
_MEASURE: Final = re.compile(
    r"(?:^|[\W_])(?:loss|acc|accuracy|err|error|ppl|perplexity|psnr|ssim|m?iou|m?ap|f1|auc|bleu|mae"
    r"|r?mse|fid|lpips|wer|dice|score|bpc|bpb|top-?[15])$"
)
_HELD_OUT_WORD: Final = re.compile(r"(?:^|[\W_])(val|valid|validation|eval|test)(?=$|[\W_])")
_TAIL_BYTES: Final = 64 << 10
# A name may begin at every letter, so the pattern takes the square of a line without numbers.
_LONGEST_LINE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTrial:
    """Runs a command once."""

    label: str
    command: tuple[str, ...]
    repeat: int
    limit_s: float | None = None
    is_twin: bool = False
    """Whether the other side runs the same command: its runs are none of this side's."""

    def identity(self) -> dict[str, object]:
        """Give all that decides the result, as far as the command line tells."""
        said = {"command": list(self._words), "repeat": self.repeat, "in": str(Path.cwd())}
        return {**said, "side": "candidate"} if self.is_twin else said

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(word.replace(SEED, str(self.repeat)) for word in self.command)

    def program(self, folder: Path) -> Program:
        """Run it where we are; Python is asked not to keep back what it prints."""
        unbuffered = ("env", "PYTHONUNBUFFERED=1")
        return Program(arguments=(*unbuffered, *self._words), folder=folder, limit_s=self.limit_s)

    def read(self, folder: Path, ended: TrialEnd) -> TrialResult:
        """Read what it printed by the reader of training logs."""
        result = TrialResult(
            label=self.label, status=ended.status, reason=ended.reason, wall_s=ended.wall_s
        )
        try:
            rank = read_logs([folder / OUTPUT])[0].first
        except RecordError as error:
            result = replace(result, notes=(str(error),))
        else:
            metrics = {name: _points(name, series) for name, series in rank.scalars.items()}
            result = replace(
                result, losses=_losses(rank), metrics={k: v for k, v in metrics.items() if v}
            )
        if all(preference(name) > 1 for name in result.metrics):
            printed = (folder / OUTPUT).read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
            last = {
                name: (QualityPoint(step=0, samples=None, wall_s=None, value=value),)
                for name, value in closing_metrics(printed).items()
            }
            result = replace(result, metrics={**result.metrics, **last})
        last = list(result.losses.values())[-1:]
        if result.status == "finished" and last == [None]:
            return replace(
                result, status="not finite", reason="the last printed loss is not finite"
            )
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCommands:
    """What to verify, and how often each is run."""

    base: tuple[str, ...]
    candidate: tuple[str, ...]
    seeds: int = 5
    metric: str | None = None
    margin: float | None = None
    limit_s: float | None = None


def verify_commands(wanted: WantedCommands, study: Study) -> Verification:
    """Hold a command against another, in turns.

    Raises:
        PitstopError: Nothing that decides could be read from what they print.
    """
    sides: tuple[list[TrialResult], list[TrialResult]] = ([], [])
    values: tuple[list[float], list[float]] = ([], [])
    commands = (("base", wanted.base), ("candidate", wanted.candidate))
    findings = Findings(
        base=shlex.join(wanted.base),
        candidate=shlex.join(wanted.candidate),
        claim="training",
        study=str(study.folder),
    )
    for repeat in range(wanted.seeds):
        for results, (name, command) in zip(sides, commands, strict=True):
            label = f"{name}, run {repeat}"
            trial = CommandTrial(
                label=label,
                command=command,
                repeat=repeat,
                limit_s=wanted.limit_s,
                is_twin=name == "candidate" and command == wanted.base,
            )
            results.append(study.result(trial))
            findings = replace(findings, trials=(*findings.trials, results[-1]))
            if broken_trial(findings) is not None:
                return conclude(findings)
            # At once: what the first run does not print, hours of others do not either.
            metric = _metric(wanted, sides[0][0])
            values[results is sides[1]].append(
                _value(results[-1], metric, study.folder_of(trial) / OUTPUT)
            )
    question = _question(wanted, _metric(wanted, sides[0][0]), values[0])
    test = judge_noninferiority(question, *values)
    pairs = [compare_exactly(*pair) for pair in zip(*sides, strict=True)]
    exact = next((pair for pair in pairs if not pair.is_equal), pairs[0])
    learns = any(falls(run.losses.values()) for run in sides[0])
    one_seed = wanted.seeds > 1 and any(map(_repeats, sides))
    if one_seed:  # more of the same decide nothing
        test = replace(test, more_seeds=None)
    return conclude(
        replace(
            findings,
            exact=exact,
            statistical=test,
            learns=learns,
            one_seed=one_seed,
            is_held_out=preference(question.metric) != 2,
        )
    )


def _repeats(runs: Sequence[TrialResult]) -> bool:
    """Whether all runs printed the same numbers."""
    return all((run.losses, run.metrics) == (runs[0].losses, runs[0].metrics) for run in runs)


def _metric(wanted: WantedCommands, base: TrialResult) -> str:
    """Decide by what: a held-out loss before any other held-out number, before the training loss.

    Raises:
        PitstopError: They print nothing of the kind, or not what was asked for.
    """
    known = list(base.metrics)
    ordered = sorted(known, key=preference)
    metric = wanted.metric or next((name for name in ordered if preference(name) < 3), None)
    if metric is None or metric not in known:
        listed = ", ".join(known) or "nothing"
        why = " ".join(base.notes)
        raise PitstopError(
            f"what the first command printed holds no {metric or 'loss or metric'}; it was read "
            f"as: {listed}. {why}".strip()
        )
    return metric


def _question(wanted: WantedCommands, metric: str, base: Sequence[float]) -> Question:
    margin, source = wanted.margin, "--margin"
    if margin is None:
        margin = MARGIN_SHARE * abs(fmean(base))
        source = f"{MARGIN_SHARE:.0%} of the baseline's; --margin sets another"
    return Question(
        metric=metric,
        higher_is_better=_LOWER_IS_BETTER.search(metric) is None,
        margin=margin,
        margin_from=source,
        paired=all(any(SEED in word for word in side) for side in (wanted.base, wanted.candidate)),
    )


def preference(name: str) -> int:
    """Rank a printed name: 0 a held-out loss, 1 another held-out number, 2 the training loss."""
    # "val/train_loss" is the loss of training samples, taken at an evaluation.
    is_held_out = not _is_of_training(name) and "train" not in name.lower()
    if _LOSS.search(name):
        return 0 if is_held_out else 2
    return 1 if is_held_out and "loss" not in name else 3


def closing_metrics(printed: str) -> dict[str, float]:
    """Give the last value of each held-out number: what is printed once, at the end, is no log."""
    found: dict[str, float] = {}
    for line in printed.lower().splitlines():
        for match in _NAMED_NUMBER.finditer(line[:_LONGEST_LINE]):
            name = match[1].strip()
            words = _HELD_OUT_WORD.findall(line[: match.end(1)])
            if words and _MEASURE.search(name) and "train" not in name:
                found[name if _HELD_OUT.search(name) else f"{words[-1]}/{name}"] = float(match[2])
    return found


def _is_of_training(name: str) -> bool:
    return _HELD_OUT.search(name) is None


def _value(run: TrialResult, metric: str, output: Path) -> float:
    value = run.final(metric)
    if value is None:
        listed = ", ".join(run.metrics) or "nothing"
        raise PitstopError(
            f"{run.label} printed no {metric}, though others did; what it printed was read as: "
            f"{listed}; see {output}, or name with --metric what both print"
        )
    return value


def _losses(rank: RankRecord) -> dict[int, float | None]:
    """Give the training loss; where only held-out ones are printed, the first of these."""
    named = [name for name in rank.scalars if _LOSS.search(name)]
    if not named:
        return {}
    return rank.scalars[max(named, key=_is_of_training)].by_step()


def _points(name: str, series: ScalarSeries) -> tuple[QualityPoint, ...]:
    """Give every value; a training loss ends with the mean of its last tenth."""
    finite = [
        (int(step), value)
        for step, value in zip(series.step.tolist(), series.value.tolist(), strict=True)
        if isfinite(step) and isfinite(value)
    ]
    points = [
        QualityPoint(step=step, samples=None, wall_s=None, value=value) for step, value in finite
    ]
    if points and preference(name) == 2:
        last = [value for _, value in finite[-max(1, len(finite) // _LAST) :]]
        points[-1] = replace(points[-1], value=fmean(last))
    return tuple(points)
