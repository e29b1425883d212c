"""``pitstop infer``: what trained weights make of the evaluation data, as files."""

from pathlib import Path
from typing import Annotated

import typer

from pitstop.cli.evaluate import Checkpoint, load_task
from pitstop.cli.output import Config, JsonPath, Overrides, require_torch, show

Output = Annotated[Path, typer.Option(help="Folder to make; it must not hold anything yet.")]


def infer(
    config: Config,
    overrides: Overrides = None,
    *,
    checkpoint: Checkpoint,
    output: Output,
    json_path: JsonPath = None,
) -> None:
    """Write a trained model's outputs; on several GPUs: torchrun ... -m pitstop infer ..."""
    require_torch("inference")
    from pitstop.report.evaluation import inference_report
    from pitstop.train.evaluation.trained_model import infer_checkpoint

    loaded, task = load_task(config, overrides)
    record = infer_checkpoint(loaded, task, checkpoint, output)
    if record is not None:
        typed = [str(config), *(overrides or ()), "--checkpoint", str(checkpoint)]
        show(record, lambda: inference_report(record, typed), json_path)
