"""A verdict and its shares in an experiment tracker: TensorBoard, Weights & Biases, MLflow.

Each is imported when it is asked for, and named where it is missing. Where data goes is decided by
the tracker's own settings (`WANDB_MODE=offline`, `MLFLOW_TRACKING_URI`): nothing is sent anywhere
that its user has not set up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from pitstop.errors import MissingPackage, PitstopError
from pitstop.report.export.figures import ExportedRun


def to_tensorboard(run: ExportedRun, folder: Path) -> None:
    """Write numbers as scalars of step 0 and texts as texts, in a folder of the run's name.

    Raises:
        MissingPackage: TensorBoard is not installed.
    """
    events = _required("tensorboard.summary.writer.event_file_writer", "tensorboard")
    proto = _required("tensorboard.compat.proto.event_pb2", "tensorboard")
    summaries = _required("tensorboard.compat.proto.summary_pb2", "tensorboard")
    scalars = [
        summaries.Summary.Value(tag=name, simple_value=value) for name, value in run.metrics.items()
    ]
    texts = [_text_value(summaries, name, text) for name, text in run.texts.items()]
    writer = events.EventFileWriter(str(folder / run.name))
    try:
        writer.add_event(proto.Event(summary=summaries.Summary(value=scalars + texts), step=0))
    finally:
        writer.close()


def _text_value(summaries: Any, name: str, text: str) -> Any:
    """Give a text as TensorBoard's own plugin for texts reads it."""
    tensors = _required("tensorboard.compat.proto.tensor_pb2", "tensorboard")
    plugin = summaries.SummaryMetadata.PluginData(plugin_name="text")
    return summaries.Summary.Value(
        tag=name,
        metadata=summaries.SummaryMetadata(plugin_data=plugin),
        tensor=tensors.TensorProto(dtype="DT_STRING", string_val=[text.encode()]),
    )


def to_wandb(run: ExportedRun, project: str) -> None:
    """Make a run of its own in a project: numbers and texts in its summary.

    Raises:
        MissingPackage: wandb is not installed.
        PitstopError: W&B refused.
    """
    wandb = _required("wandb", "wandb")
    with (
        _said_plainly("W&B"),
        wandb.init(project=project, name=run.name, job_type="pitstop") as made,
    ):
        made.summary.update({**run.metrics, **run.texts})


def to_mlflow(run: ExportedRun, experiment: str) -> None:
    """Make a run of its own in an experiment: numbers as metrics, texts as tags and an artifact.

    Raises:
        MissingPackage: mlflow is not installed.
        PitstopError: MLflow refused.
    """
    mlflow = _required("mlflow", "mlflow")
    tags = {name: run.texts[name] for name in ("pitstop/outcome", "pitstop/verdict")}
    with _said_plainly("MLflow"):
        mlflow.set_experiment(experiment)
        with mlflow.start_run(run_name=run.name):
            mlflow.log_metrics(dict(run.metrics))
            mlflow.set_tags(tags)
            mlflow.log_text(run.texts["pitstop/findings"], "pitstop-findings.md")


@contextmanager
def _said_plainly(tracker: str) -> Iterator[None]:
    """Turn what a tracker refuses, by errors of its own, into one paragraph."""
    try:
        yield
    except Exception as error:
        raise PitstopError(f"{tracker} did not take the run: {error}") from error


def _required(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingPackage(package, purpose=f"an export to {package}") from error
