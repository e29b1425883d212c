"""``pitstop export`` and ``export-model``: a judged run, or trained weights, in other tools."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.evaluate import Checkpoint, load_task
from pitstop.cli.output import Config, JsonPath, Overrides, require_torch, show
from pitstop.errors import PitstopError
from pitstop.records.units import bytes_text

if TYPE_CHECKING:
    from pitstop.train.evaluation.model_export import ModelExport


Program = Annotated[
    Path | None, typer.Option("--torch-export", metavar="FILE", help="Archive of torch.export.")
]
Onnx = Annotated[Path | None, typer.Option(metavar="FILE", help="ONNX file.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What went where."""

    source: str
    places: tuple[str, ...]
    """One line each."""


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder or file that a measured run wrote.")
    ],
    *,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Steps and sampled parts, for Perfetto and Chrome."),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Verdict and shares as event files.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Verdict and shares as a W&B run.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="EXPERIMENT", help="Verdict and shares as an MLflow run.")
    ] = None,
    json: JsonPath = None,
) -> None:
    """Hand a run's steps, verdict and shares to another tool."""
    if trace is None and tensorboard is None and wandb is None and mlflow is None:
        raise PitstopError("name where to: --trace, --tensorboard, --wandb or --mlflow")
    from pitstop.doctor.judge import judge_run
    from pitstop.report.export import trackers
    from pitstop.report.export.figures import exported
    from pitstop.report.export.trace import write_trace
    from pitstop.report.printable import literal_lines

    judged = judge_run(run)
    values, places = exported(judged), []
    if trace is not None:
        slices = write_trace(judged.record, trace)
        places.append(f"trace of {slices:,} slices: {trace}; open it on ui.perfetto.dev")
    if tensorboard is not None:
        trackers.to_tensorboard(values, tensorboard)
        places.append(f"TensorBoard: tensorboard --logdir {tensorboard}")
    if wandb is not None:
        trackers.to_wandb(values, wandb)
        places.append(f"W&B: project {wandb}, run {values.name}")
    if mlflow is not None:
        trackers.to_mlflow(values, mlflow)
        places.append(f"MLflow: experiment {mlflow}, run {values.name}")
    found = Exported(source=str(run), places=tuple(places))
    show(found, lambda: literal_lines("\n".join(found.places)), json)


def export_model(
    config: Config,
    overrides: Overrides = None,
    *,
    checkpoint: Checkpoint,
    program: Program = None,
    onnx: Onnx = None,
    json_path: JsonPath = None,
) -> None:
    """Write a trained model for other programs, and check that it gives the same."""
    require_torch("exporting a model")
    if program is None and onnx is None:
        raise PitstopError("name what to write: --torch-export FILE, --onnx FILE, or both")
    from pitstop.train.evaluation.model_export import export_checkpoint

    # Fused kernels are code for one kind of device; the reference is what torch knows.
    _, task = load_task(config, [*(overrides or ()), "model.kernels=reference"])
    found = export_checkpoint(task, checkpoint, program=program, onnx=onnx)
    show(found, lambda: _report(found), json_path)


def _report(found: "ModelExport") -> str:
    lines = [
        f"{file.path}: {file.kind}, {bytes_text(file.size_bytes)}, within {file.difference:.1e} of "
        "the model's output"
        for file in found.files
    ]
    taken = ", ".join(f"{name} {shape}" for name, shape in found.inputs.items())
    return "\n".join([*lines, f"takes {taken}; gives {found.output}", found.checkpoint])
