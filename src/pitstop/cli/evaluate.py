"""``pitstop eval``: the quality of trained weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pitstop.cli.output import Config, JsonPath, Overrides, require_torch, show

if TYPE_CHECKING:
    from pitstop.config.sections import RunConfig
    from pitstop.train.task import Task

SubmissionStyle = Literal["keys", "challenge"]

Drawn = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Also draw N samples, into RUN/pictures.")
]
Submit = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write the ranking of every query, as CSV (reid)."),
]
SubmitTop = Annotated[
    int, typer.Option(min=0, metavar="N", help="Images in a ranking; 0 for the whole gallery.")
]
SubmitAs = Annotated[
    SubmissionStyle, typer.Option(help="Columns: query_key, or the challenge's query_idx.")
]
Checkpoint = Annotated[
    Path, typer.Option(help="A checkpoint, a run (its newest checkpoint), or a file of weights.")
]


def evaluate(  # noqa: PLR0913 - each is an option
    config: Config,
    overrides: Overrides = None,
    *,
    checkpoint: Checkpoint,
    pictures: Drawn = None,
    submit: Submit = None,
    submit_top: SubmitTop = 100,
    submit_as: SubmitAs = "keys",
    json_path: JsonPath = None,
) -> None:
    """Measure a trained model; on several GPUs: torchrun --nproc-per-node N -m pitstop eval ..."""
    require_torch("evaluation")
    from pitstop.report.evaluation import evaluation_report
    from pitstop.train.evaluation.pictures import draw_pictures
    from pitstop.train.evaluation.trained_model import evaluate_checkpoint
    from pitstop.train.task import DrawsMeasured, Submission

    loaded, task = load_task(config, overrides)
    measured = pictures if isinstance(task, DrawsMeasured) else None
    if pictures is not None and measured is None:
        run = loaded.run.work_dir / loaded.run.name
        draw_pictures(loaded, task, checkpoint, run, count=pictures)
    submission = None
    if submit is not None:
        submission = Submission(path=submit, top=submit_top or None, style=submit_as)
    record = evaluate_checkpoint(loaded, task, checkpoint, submission=submission, pictures=measured)
    if record is not None:
        typed = [str(config), *(overrides or ()), "--checkpoint", str(checkpoint)]
        show(record, lambda: evaluation_report(record, typed), json_path)


def load_task(config: Path, overrides: list[str] | None) -> "tuple[RunConfig, Task[Any]]":
    """Load a configuration and build its task, for weights that come from a checkpoint."""
    from pitstop.config.load import load_config
    from pitstop.workloads.catalogue import build_task, outside_kinds

    # What training began with may be gone by now, and the checkpoint takes its place.
    settings = [*(overrides or ()), "model.weights=null", "model.weights_key=null"]
    loaded = load_config(config, settings, kinds=outside_kinds())
    return loaded.config, build_task(loaded.config)
