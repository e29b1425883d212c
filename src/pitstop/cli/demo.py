"""``pitstop demo``: a slow run comes in, leaves with its bottleneck named and the fix measured."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from pitstop.cli.demo_run import Comparison, Scale
    from pitstop.doctor.changes import Change
    from pitstop.records.run import RunRecord
    from pitstop.records.verdict import Verdict


class Bottleneck(StrEnum):
    """What slows the first run down."""

    several = "several"
    data = "data"
    evaluation = "evaluation"


def demo(
    output: Annotated[Path, typer.Option(help="Folder to fill; an earlier demo's is replaced.")] = (
        Path("demo")
    ),
    steps: Annotated[int, typer.Option(min=30, help="Steps of each run that is compared.")] = 30,
    bottleneck: Annotated[
        Bottleneck, typer.Option(help="What slows the first run down.")
    ] = Bottleneck.several,
) -> None:
    """Train on generated clips, find what is slow, fix it, and prove the gain; on a CPU."""
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
        MissingExtra: Names the extra that brings what is missing.
    """
    try:
        from pitstop.cli import demo_run
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "PIL"):
            raise
        raise MissingExtra(error.name, extra="train", purpose="the demo") from error
    return demo_run


def demonstrate(
    output: Path, bottleneck: Bottleneck, scale: "Scale", say: "Callable[[str], object]"
) -> "tuple[Change, ...]":
    """Go through the whole chain, a line at a time; give the settings that were changed."""
    from pitstop.cli import demo_run
    from pitstop.cli.report import page_of
    from pitstop.doctor.changes import changes_for
    from pitstop.doctor.judge import verdict_of
    from pitstop.measure.host.limits import read_host_limits

    clips = demo_run.prepare(output, scale)
    say(f"1. made {sum(clips.clips.values())} clips of a spike camera, {clips.frames} frames each")
    slow = demo_run.BOTTLENECKS[bottleneck.value]
    say(f"2. training a small deblurring network, slowly: {' '.join(slow)}")
    config = demo_run.configure(output / demo_run.SLOW, slow, clips, steps=scale.steps)
    verdict = verdict_of(demo_run.train(config))
    cores = read_host_limits().cores
    changes = changes_for(verdict, config.model_dump(mode="json"), cores=cores)
    for line in diagnosis_lines(verdict, changes):
        say(line)
    fixed = (*slow, *(change.override for change in changes))
    if changes:
        for line in comparison_lines(demo_run.train_in_turns(clips, slow, fixed, scale)):
            say(line)
        turns = [output / demo_run.TURNS / name for name in ("before-1", "after-1")]
        page_of(turns, output / demo_run.COMPARED)
    say(quality_line(demo_run.learn(clips, fixed, scale)))
    page_of([output / demo_run.FIXED], output / demo_run.REPORT)
    say(f"\nthe fixed run with restored frames: {output / demo_run.REPORT}")
    if changes:
        say(f"before and after, side by side: {output / demo_run.COMPARED}")
    say(f"details: pitstop doctor {output / demo_run.SLOW}")
    return changes


def diagnosis_lines(verdict: "Verdict", changes: "Sequence[Change]") -> "Iterator[str]":
    """Say what was found, and for each finding the settings that follow from it."""
    from pitstop.records.units import share_text

    yield f"3. the doctor says {verdict.outcome}: {verdict.message}"
    for finding in verdict.findings:
        if finding.severity == "info":
            continue
        cost = "" if finding.bound is None else f", {share_text(finding.bound.share)} of the time"
        fixes = [
            f"{change.key} {_shown(change.before)} -> {_shown(change.after)}"
            for change in changes
            if change.code == finding.code
        ]
        fix = ", ".join(fixes) or "no setting of the demo fixes it"
        yield f"   {finding.code} {finding.summary}{cost}: {fix}"
    if not changes:
        yield "   nothing to change, so there is nothing to compare"


def _shown(value: object) -> str:
    return "never" if value is None else str(value)


def comparison_lines(comparison: "Comparison") -> "Iterator[str]":
    """Give the median and the range of all pairs, and whether the same was computed."""
    from statistics import median

    from pitstop.records.units import seconds_text, speedup_text

    ratios = comparison.ratios
    before, after = (seconds_text(median(s)) for s in (comparison.before_s, comparison.after_s))
    spread = f"{speedup_text(min(ratios))} to {speedup_text(max(ratios))}"
    yield (
        f"4. the same {comparison.steps} steps both ways, in turns: {before} a step before, "
        f"{after} after"
    )
    if min(ratios) <= 1:
        yield f"   no gain beyond noise: {spread} in {len(ratios)} pairs"
    else:
        yield (
            f"   {speedup_text(median(ratios))} faster ({spread} in {len(ratios)} pairs; "
            "measured, evaluating and saving included)"
        )
    if comparison.largest_difference == 0:
        yield "   the weights it ends with are equal to the bit: only the time changed"
    else:
        yield f"   weights differ by up to {comparison.largest_difference:.1e} at the end"


def quality_line(record: "RunRecord") -> str:
    """Compare what the model restored with what it was given, on the clip kept back."""
    from pitstop.records.units import quality_text

    values = record.first.scalars
    steps = int(values["eval/psnr"].step[-1])
    given, restored = (
        quality_text(float(values[f"eval/{name}"].value[-1])) for name in ("psnr_input", "psnr")
    )
    return (
        f"5. trained {steps} steps so: an unseen clip goes from {given} dB blurry to {restored} dB "
        "restored (PSNR)"
    )
