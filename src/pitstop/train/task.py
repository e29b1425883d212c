"""What the engine knows of a workload.

A task builds a model and data, turns a batch into a loss, and measures quality. The engine does
the rest: precision, accumulation, clipping, updates, checkpoints, timing. A task never touches
optimizers, autocast, devices' synchronisation or files of the run.

Everything random in a sample is a function of (seed, epoch, index), never of a global generator:
that is what makes a resumed run equal to one left alone, whatever the number of workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from pitstop.data.loader.fetch import Samples
from pitstop.records.pictures import PictureRow

BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss as a sum and what it is divided by, so that micro-batches add up exactly.

    The gradient of an optimizer step is that of all totals together over all counts together: the
    large batch's own, however the samples were dealt to micro-batches and ranks.
    """

    total: Tensor
    """Scalar on the device: the sum over everything that is averaged."""
    count: Tensor | int
    """What `total` is divided by to become a mean: samples, pixels, pairs. A tensor stays on the
    device."""
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached scalars by name, for the log; never read by the step."""


class Metrics(Protocol):
    """Quality over a data set, gathered batch by batch in constant memory."""

    def update(self, output: Any, batch: Any) -> None:
        """Take in one batch."""
        ...

    def state(self) -> Tensor:
        """Give everything gathered as one vector; vectors of ranks add up."""
        ...

    def result(self, state: Tensor) -> dict[str, float]:
        """Turn a (summed) state into named numbers."""
        ...


@runtime_checkable
class SeesModel(Protocol):
    """Metrics that need the model once more when all batches are in, as a search does."""

    def see(self, model: nn.Module) -> None:
        """Take the model; it is in evaluation mode from here to the end of `Metrics.result`."""
        ...


@runtime_checkable
class Task(Protocol[BatchT]):
    """A workload, as far as the engine is concerned."""

    name: str
    loss_is_separable: bool
    """Whether the loss is a sum over samples. A loss that pairs samples is not: accumulating it
    over micro-batches is another loss than that of the large batch."""
    nominal_count: float
    """About `Loss.count` of one micro-batch. It sets the size of gradients while they accumulate;
    the update does not depend on it."""
    higher_is_better: Mapping[str, bool]
    """Every metric by name, and which way it improves."""

    def build_model(self) -> nn.Module:
        """Make the model on the CPU, in the present random state."""
        ...

    def build_teacher(self, config_yaml: str) -> nn.Module:
        """Make the model that a checkpoint's own configuration describes, for distillation."""
        ...

    def train_samples(self) -> Samples:
        """Give the training data; it travels to workers by pickle."""
        ...

    def eval_samples(self) -> Samples:
        """Give the evaluation data."""
        ...

    def collate(self, samples: list[Any]) -> BatchT:
        """Join samples into a batch, on the host."""
        ...

    def samples_in(self, batch: BatchT) -> int:
        """Count the samples of a batch without looking at the device."""
        ...

    def to_device(self, batch: BatchT, device: torch.device) -> BatchT:
        """Bring a batch to the device without waiting for the copy."""
        ...

    def forward(self, model: nn.Module, batch: BatchT) -> Any:
        """Run the model on a batch."""
        ...

    def loss(self, output: Any, batch: BatchT, step: int) -> Loss:
        """Judge an output; `step` lets terms have a cadence of their own."""
        ...

    def distance(self, output: Any, teacher_output: Any) -> Tensor:
        """Mean distance to a teacher's output, for distillation."""
        ...

    def metrics(self) -> Metrics:
        """Make a fresh collector of quality."""
        ...

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """Name the parts of the model that deserve a span of their own."""
        ...

    def regions(self, model: nn.Module) -> Sequence[nn.Module]:
        """List the repeated blocks: what is compiled by region and recomputed by unit."""
        ...


@runtime_checkable
class WritesOutputs(Protocol):
    """A task whose outputs can be kept: what `pitstop infer` needs beside `Task`."""

    def write_output(
        self, output: Any, batch: Any, indices: Sequence[int], folder: Path
    ) -> list[Path]:
        """Write the outputs of one batch under a folder, each file whole or not at all.

        Args:
            output: What `Task.forward` gave, on the device.
            batch: The batch, on the host.
            indices: Which samples of `Task.eval_samples` the batch is made of, in its order.
            folder: Shared by all ranks; no two samples may write the same file.

        Returns:
            The files written.

        Raises:
            DataError: Where a file cannot be written.
        """
        ...


@runtime_checkable
class DrawsPictures(Protocol):
    """A task whose outputs can be shown: a few rows of pictures for people to look at."""

    def draw(
        self, output: Any, batch: Any, indices: Sequence[int], folder: Path
    ) -> list[PictureRow]:
        """Write the pictures of one batch into a folder, each file whole or not at all.

        Args:
            output: What `predict` gave, on the device.
            batch: The batch, on the host.
            indices: Which samples of `Task.eval_samples` the batch is made of, in its order.
            folder: Where the files go; no two samples may write the same file.

        Returns:
            A row for each sample, its cells named by the files just written.

        Raises:
            DataError: Where a file cannot be written.
        """
        ...


@runtime_checkable
class NamesLossParts(Protocol):
    """A task whose loss has parts that deserve a span of their own."""

    def loss_parts(self) -> Mapping[str, nn.Module]:
        """Name them; no name may be one of `Task.parts`."""
        ...


@runtime_checkable
class ReportsStart(Protocol):
    """A task that has something to report about the model which it built."""

    def start_notes(self) -> tuple[str, ...]:
        """Give sentences about the last `Task.build_model`, such as which weights were taken."""
        ...


@runtime_checkable
class Predicts(Protocol):
    """A task that runs its model in another way where nothing is learned, such as in tiles."""

    def predict(self, model: nn.Module, batch: Any) -> Any:
        """Give what `Task.forward` would give, for evaluation and inference."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesMade:
    """What became of files that are no part of the data set."""

    samples: int
    files: int
    notes: tuple[str, ...] = ()


@runtime_checkable
class InfersFiles(Protocol):
    """A task that can run over files which its configuration names beside the data set."""

    def names_files(self) -> bool:
        """Say whether the configuration names any, and check them.

        Raises:
            DataError: Where they cannot be used.
        """
        ...

    def infer_files(self, model: nn.Module, folder: Path, device: torch.device) -> FilesMade:
        """Run the model over them and write its outputs, each file whole or not at all."""
        ...


@runtime_checkable
class DrawsMeasured(Protocol):
    """A task whose pictures show what a whole evaluation found, not one sample."""

    def draw_measured(
        self, metrics: "Metrics", state: Tensor, folder: Path, *, count: int
    ) -> list[PictureRow]:
        """Write pictures into a folder, each file whole or not at all.

        Args:
            metrics: The collector that saw the evaluation.
            state: What it gathered, over all ranks.
            folder: Where the files go.
            count: Rows of pictures.

        Raises:
            DataError: Where an image cannot be read, or a file cannot be written.
        """
        ...


@runtime_checkable
class TakesSizes(Protocol):
    """A task whose network is made for its dataset, and can be made for trained weights instead."""

    def take_sizes(self, tensors: Mapping[str, Tensor]) -> None:
        """Let the next network be one for these weights, without any look at the dataset.

        Raises:
            CheckpointError: Where they are no weights of such a network.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A file of answers for a challenge that keeps the truth to itself."""

    path: Path
    top: int | None
    """How many answers a question gets; None for all."""
    style: Literal["keys", "challenge"]
    """Which columns it has; see the workload."""


@runtime_checkable
class WritesSubmission(Protocol):
    """A task whose evaluation can be handed in somewhere else."""

    def expect_submission(self) -> None:
        """Learn, before any data are read, that the truth need not be known."""
        ...

    def write_submission(
        self, metrics: Metrics, state: Tensor, submission: Submission
    ) -> tuple[str, ...]:
        """Write the file from what an evaluation gathered, and say what is in it.

        Raises:
            DataError: Where it cannot be written.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportForm:
    """A model as a function of tensors alone, of fixed shapes, for use outside of this code."""

    module: nn.Module
    """In evaluation mode; takes the inputs by position and gives one tensor."""
    inputs: Mapping[str, Tensor]
    """Examples by name, in the order of the module's arguments."""
    output: str
    """Name of what it gives."""
    expected: Tensor
    """What the task's own way of running the model gives for the examples."""


@runtime_checkable
class Exports(Protocol):
    """A task whose model can be written down for other programs."""

    def export_form(self, model: nn.Module) -> ExportForm:
        """Give a trained model as a function of tensors; it was built with reference kernels."""
        ...


@runtime_checkable
class MakesBlankBatches(Protocol):
    """A task that can be planned where its data are not: it knows the shapes of a batch."""

    def blank_batch(self, batch_size: int) -> Any:
        """Make a batch of training as `Task.collate` would, of the right shapes and no content."""
        ...


@runtime_checkable
class MakesBlankEvaluation(Protocol):
    """A task whose evaluation batches have other shapes than those of training."""

    def blank_eval_batch(self, batch_size: int) -> Any:
        """Make a batch of evaluation, of the right shapes and no content."""
        ...


@runtime_checkable
class MakesBlankMetrics(Protocol):
    """A task whose collector of quality can be planned where its data are not."""

    def blank_metrics(self) -> Metrics:
        """Make a collector as `Task.metrics` would, of an evaluation that nobody has seen."""
        ...


def predict(task: Task[BatchT], model: nn.Module, batch: BatchT) -> Any:
    """Run a model where nothing is learned, the way its task wants it."""
    if isinstance(task, Predicts):
        return task.predict(model, batch)
    return task.forward(model, batch)
