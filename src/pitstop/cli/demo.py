"""``pitstop demo``: a slow run comes in, leaves with its bottleneck named and the fix measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.errors import MissingExtra, RecordError

if TYPE_CHECKING:
    from types import ModuleType

    from pitstop.records.run import RunRecord
    from pitstop.records.verdict import Verdict


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the records of the runs.")] = Path(
        "demo"
    ),
    steps: Annotated[int, typer.Option(min=40, help="Steps of each run.")] = 80,
) -> None:
    """Train on generated clips, find what is slow, mend it, and prove the gain; on a CPU."""
    runs = _training()
    from pitstop.doctor.examine import examine
    from pitstop.records.store import read_run
    from pitstop.report.terminal import make_console, verdict_report

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write to {output}: {error.strerror}") from error
    console = make_console()
    console.print(f"1. training {steps} steps on generated spike-camera clips, as found")
    runs.train(output / "found", steps=steps, slow_decoder=True)
    verdict = examine(read_run(output / "found"))
    console.print(verdict_report(verdict))

    if not any(finding.code == "DATA001" for finding in verdict.findings):
        console.print("\nhere the data is no bottleneck, so there is nothing to mend")
        return
    console.print("\n2. the cure: spikes unpacked a plane at a time, not bit by bit;")
    console.print(f"   {steps} steps of each in turns, so that both meet the same noise")
    runs.train_in_turns(output / "before", output / "after", steps=steps)
    before, after = read_run(output / "before"), read_run(output / "after")
    console.print(_comparison(before, after, verdict))
    console.print(f"\nlook closer: pitstop doctor {output / 'after'}")


def _training() -> "ModuleType":
    """Give the training loops, which are all of the demo that needs torch."""
    try:
        from pitstop.cli import demo_run
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("torch", extra="train", purpose="the demo") from error
    return demo_run


def _comparison(before: "RunRecord", after: "RunRecord", verdict: "Verdict") -> str:
    """Compare two runs whose steps were taken in turns: by pairs, median and middle half."""
    import numpy as np

    from pitstop.doctor.facts import facts_of
    from pitstop.report.units import seconds_text, share_text, speedup_text

    old, new = facts_of(before.first), facts_of(after.first)
    low, gain, high = np.percentile(old.wall_us / new.wall_us, (25, 50, 75))
    bound = verdict.findings[0].bound
    limit = "none" if bound is None else speedup_text(bound.speedup)
    losses = [run.first.scalars["loss"].value for run in (before, after)]
    same = losses[0].tolist() == losses[1].tolist()
    return "\n".join(
        (
            f"   a step took {seconds_text(float(np.median(old.wall_us)) / 1e6)}, now "
            f"{seconds_text(float(np.median(new.wall_us)) / 1e6)}: {gain:.2f}x as fast "
            f"(middle half {low:.2f} to {high:.2f}, stated bound {limit})",
            f"   waiting for data: {share_text(old.share('data'))} of the step, now "
            f"{share_text(new.share('data'))}",
            f"   losses of all {len(losses[0])} steps: {'equal to the bit' if same else 'DIFFER'}",
        )
    )
