"""``pitstop demo``: a slow run comes in, leaves with its bottleneck named and the fix measured."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.errors import MissingPackage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from pitstop.cli.demo.engine import EngineTurns, Scale
    from pitstop.cli.demo.script import ScriptFolder, ScriptTurns
    from pitstop.doctor.changes import Change
    from pitstop.doctor.pairs import PairedRuns
    from pitstop.records.run import RunRecord
    from pitstop.records.verdict import Verdict

    Say = Callable[[str], object]

_SCRIPT_STEPS = 50
# Lines of a finding's evidence that the demo shows; `pitstop doctor` shows all.
_SHOWN_LINES = 2


class Bottleneck(StrEnum):
    """What slows the engine's first run down."""

    several = "several"
    data = "data"
    evaluation = "evaluation"


def demo(
    output: Annotated[Path, typer.Option(help="Folder to fill; an earlier demo's is replaced.")] = (
        Path("demo")
    ),
    steps: Annotated[int, typer.Option(min=30, help="Steps of each run of the engine.")] = 30,
    bottleneck: Annotated[
        Bottleneck, typer.Option(help="What slows the engine's first run down.")
    ] = Bottleneck.several,
) -> None:
    """Find what slows a script down, fix it, prove the gain; then the engine; on a CPU."""
    scale = _require_training().Scale(steps=steps)
    from pitstop.report.terminal import make_console

    try:
        demonstrate(output, bottleneck, scale, make_console().print)
    except KeyboardInterrupt:
        again = f"`pitstop demo` begins anew in {output}"
        typer.echo(f"the demo was stopped before its end; {again}", err=True)
        raise


def _require_training() -> "ModuleType":
    """Give what needs torch.

    Raises:
        MissingPackage: Says how to get what is missing.
    """
    try:
        from pitstop.cli.demo import engine
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "PIL"):
            raise
        package = "pillow" if error.name == "PIL" else error.name
        raise MissingPackage(package, purpose="the demo") from error
    return engine


def demonstrate(
    output: Path, bottleneck: Bottleneck, scale: "Scale", say: "Say"
) -> "tuple[Change, ...]":
    """Go through the whole chain, a line at a time; give the settings that were changed."""
    from pitstop.cli.demo import folder

    folder.prepare_folder(output)
    demonstrate_script(output, say)
    changes = demonstrate_engine(output, bottleneck, scale, say)
    say(f"\nthe script, before and after: {output / folder.SCRIPT_PAGE}")
    if changes:
        say(f"the engine, before and after: {output / folder.COMPARED}")
    say(f"the engine's run with restored frames: {output / folder.REPORT}")
    say("your own: pitstop doctor -- python train.py")
    return changes


def demonstrate_script(output: Path, say: "Say") -> "ScriptTurns":
    """Diagnose a script as people write them, show its fix, measure both in turns."""
    from pitstop.cli.demo.folder import SCRIPT_PAGE
    from pitstop.cli.demo.script import diagnose, measure_pairs, prepare_script
    from pitstop.report.page.html import write_page

    script = prepare_script(output, steps=_SCRIPT_STEPS)
    say(f"1. a training script as people write them, for {script.pictures} pictures on disk:")
    say(f"   pitstop doctor -- {script.shown}")
    verdict = diagnose(script)
    for line in script_diagnosis_lines(verdict):
        say(line)
    for line in fix_lines(script):
        say(line)
    turns = measure_pairs(script)
    for line in script_comparison_lines(turns, verdict):
        say(line)
    write_page(turns.pairs.judged, output / SCRIPT_PAGE)
    return turns


def script_diagnosis_lines(verdict: "Verdict") -> "Iterator[str]":
    """Say what the doctor found in the script, with the lines it blames."""
    yield f"   {verdict.outcome}: {verdict.message}"
    worst = next((found for found in verdict.findings if found.severity != "info"), None)
    if worst is None:
        return
    yield f"   {worst.code} {worst.evidence[0]}"
    blamed = [line for line in worst.evidence if "of the wait at" in line]
    for line in blamed[:_SHOWN_LINES]:
        yield f"     {line}"


def fix_lines(script: "ScriptFolder") -> "Iterator[str]":
    """Show what was changed in the script."""
    from pitstop.cli.demo.script import DIFF

    yield f"2. the fix, in {script.folder / DIFF}:"
    for line in script.diff.splitlines():
        if not line.startswith(("---", "+++")):
            yield f"   {line}"


def script_comparison_lines(turns: "ScriptTurns", verdict: "Verdict") -> "Iterator[str]":
    """Give the gain beside what was predicted, and whether the same was computed."""
    from pitstop.records.units import speedup_text

    yield from gain_lines(turns.pairs, number=3)
    # That of the finding which the verdict names.
    bound = next((finding.bound for finding in verdict.findings if finding.bound), None)
    if bound is not None and bound.speedup is not None:
        yield f"   predicted before anything was changed: up to {speedup_text(bound.speedup)}"
    if turns.printed_the_same:
        yield "   the losses it prints are the same to the last digit: only the time changed"
    else:
        yield "   the losses it prints differ; see before-1.txt and after-1.txt"


def gain_lines(pairs: "PairedRuns", *, number: int) -> "Iterator[str]":
    """Say how long a step takes both ways, and the gain as the page says it.

    The times are those of the pair with the median gain, which the page shows.
    """
    from pitstop.records.units import seconds_text

    gain = pairs.gain
    before, after = (seconds_text(times[gain.middle]) for times in (gain.before_s, gain.after_s))
    yield (
        f"{number}. the same {gain.steps} steps both ways, in turns: {before} a step before, "
        f"{after} after"
    )
    yield f"   {gain.message}"


def demonstrate_engine(
    output: Path, bottleneck: Bottleneck, scale: "Scale", say: "Say"
) -> "tuple[Change, ...]":
    """Train with the engine, slowly; let the findings choose the settings of a second run."""
    from pitstop.cli.demo import engine
    from pitstop.cli.demo.folder import COMPARED, FIXED, REPORT
    from pitstop.cli.report import page_of
    from pitstop.doctor.changes import changes_for
    from pitstop.doctor.judge import verdict_of
    from pitstop.measure.host.limits import read_host_limits
    from pitstop.report.page.html import write_page

    clips = engine.generate_clips(output, scale)
    slow = engine.BOTTLENECKS[bottleneck.value]
    say(f"4. the engine: a small deblurring network on {sum(clips.clips.values())} generated clips")
    say(f"   slow settings: {' '.join(slow)}")
    config = engine.slow_run(clips, slow, scale)
    verdict = verdict_of(engine.train(config))
    cores = read_host_limits().cores
    changes = changes_for(verdict, config.model_dump(mode="json"), cores=cores)
    for line in diagnosis_lines(verdict, changes):
        say(line)
    fixed = (*slow, *(change.override for change in changes))
    if changes:
        turns = engine.train_in_turns(clips, slow, fixed, scale)
        for line in engine_comparison_lines(turns):
            say(line)
        write_page(turns.pairs.judged, output / COMPARED)
        # What was small beside the rest may be a bottleneck now: the last run goes without it.
        settings = engine.configure(output / FIXED, fixed, clips, steps=scale.steps)
        after = turns.pairs.judged.runs[-1].verdict
        more = changes_for(after, settings.model_dump(mode="json"), cores=cores)
        for line in again_lines(after, more):
            say(line)
        fixed = (*fixed, *(change.override for change in more))
    say(quality_line(engine.learn(clips, fixed, scale)))
    page_of([output / FIXED], output / REPORT)
    return changes


def diagnosis_lines(verdict: "Verdict", changes: "Sequence[Change]") -> "Iterator[str]":
    """Say what was found, and for each finding the settings that follow from it."""
    from pitstop.records.units import share_text

    yield f"   {verdict.outcome}: {verdict.message}"
    for finding in verdict.findings:
        if finding.severity == "info":
            continue
        cost = "" if finding.bound is None else f", {share_text(finding.bound.share)} of the time"
        fix = _fixes(changes, finding.code) or "no setting of the demo fixes it"
        yield f"   {finding.code} {finding.summary}{cost}: {fix}"
    if not changes:
        yield "   nothing to change, so there is nothing to compare"


def again_lines(after: "Verdict", more: "Sequence[Change]") -> "Iterator[str]":
    """Say what the doctor finds in the fixed run, where a setting fixes that as well."""
    for code in dict.fromkeys(change.code for change in more):
        summary = next(found.summary for found in after.findings if found.code == code)
        yield f"   in the fixed run, {code} {summary}: {_fixes(more, code)}"


def _fixes(changes: "Sequence[Change]", code: str) -> str:
    def shown(value: object) -> str:
        return "never" if value is None else str(value)

    own = [change for change in changes if change.code == code]
    return ", ".join(f"{one.key} {shown(one.before)} -> {shown(one.after)}" for one in own)


def engine_comparison_lines(turns: "EngineTurns") -> "Iterator[str]":
    """Give the gain, and whether the same was computed."""
    yield from gain_lines(turns.pairs, number=5)
    if turns.largest_difference == 0:
        yield "   the weights it ends with are equal to the bit: only the time changed"
    else:
        yield f"   weights differ by up to {turns.largest_difference:.1e} at the end"


def quality_line(record: "RunRecord") -> str:
    """Compare what the model restored with what it was given, on the clip kept back."""
    from pitstop.records.units import quality_text

    values = record.first.scalars
    steps = int(values["eval/psnr"].step[-1])
    given, restored = (
        quality_text(float(values[f"eval/{name}"].value[-1])) for name in ("psnr_input", "psnr")
    )
    return (
        f"6. trained {steps} steps so: an unseen clip goes from {given} dB blurry to {restored} dB "
        "restored (PSNR)"
    )
