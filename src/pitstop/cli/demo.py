"""``pitstop demo``: a slow run comes in, leaves with its bottleneck named and the fix measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.errors import MissingExtra, RecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pitstop.records.run import RunRecord
    from pitstop.records.verdict import Verdict


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the records of both runs.")] = Path(
        "demo"
    ),
    steps: Annotated[int, typer.Option(min=40, help="Steps of each run.")] = 120,
) -> None:
    """Train on generated clips, find what is slow, mend it, and prove the gain; on a CPU."""
    train = _training()
    from pitstop.doctor.examine import examine
    from pitstop.records.store import read_run
    from pitstop.report.terminal import make_console, verdict_report

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write to {output}: {error.strerror}") from error
    console = make_console()
    console.print(f"1. training {steps} steps on generated spike-camera clips, as found")
    train(output / "before", steps=steps, slow_decoder=True)
    before = read_run(output / "before")
    verdict = examine(before)
    console.print(verdict_report(verdict))

    if not any(finding.code == "DATA001" for finding in verdict.findings):
        console.print("\nhere the data is no bottleneck, so there is nothing to mend")
        return
    console.print("\n2. the same steps with spikes unpacked a plane at a time, not bit by bit")
    train(output / "after", steps=steps, slow_decoder=False)
    after = read_run(output / "after")
    console.print(_comparison(before, after, verdict))
    console.print(f"\nlook closer: pitstop doctor {output / 'after'}")


def _training() -> "Callable[..., None]":
    """Give the training loop, which is all of the demo that needs torch."""
    try:
        from pitstop.cli.demo_run import train
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("torch", extra="train", purpose="the demo") from error
    return train


def _comparison(before: "RunRecord", after: "RunRecord", verdict: "Verdict") -> str:
    from pitstop.doctor.facts import facts_of
    from pitstop.report.units import seconds_text, share_text

    old, new = facts_of(before.first), facts_of(after.first)
    gain = old.wall_us.sum() / old.steps / (new.wall_us.sum() / new.steps)
    bound = verdict.findings[0].bound
    limit = "no bound" if bound is None or bound.speedup is None else f"{bound.speedup:.2f}x"
    losses = [run.first.scalars["loss"].value for run in (before, after)]
    same = losses[0].tolist() == losses[1].tolist()
    return "\n".join(
        (
            f"   a step took {seconds_text(old.wall_us.mean() / 1e6)}, now "
            f"{seconds_text(new.wall_us.mean() / 1e6)}: {gain:.2f}x as fast "
            f"(stated bound {limit})",
            f"   waiting for data: {share_text(old.share('data'))} of the step, now "
            f"{share_text(new.share('data'))}",
            f"   losses of all {len(losses[0])} steps: {'equal to the bit' if same else 'DIFFER'}",
        )
    )
