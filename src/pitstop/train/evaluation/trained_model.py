"""A trained model over the evaluation data: measured, or its outputs kept. Alone or on many ranks.

Only what decides numbers is taken from the configuration: data, model, evaluation, and
`train.precision`. How a training step saves memory or time (recompute, compile) is left out.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from torch import nn

from pitstop.config.sections import RunConfig
from pitstop.data.loader.batches import Loader
from pitstop.data.new_dataset import refuse_used_root
from pitstop.errors import ConfigError, DataError
from pitstop.records.evaluation import EvaluationRecord, InferenceRecord
from pitstop.train.evaluation.outputs import infer
from pitstop.train.evaluation.pictures import keep_pictures, refuse_ranks
from pitstop.train.evaluation.quality import eval_loader, eval_order, gather, require_metric
from pitstop.train.optim.precision import Precision
from pitstop.train.ranks import Ranks, join_ranks, leave_ranks
from pitstop.train.setup import choose_device
from pitstop.train.state.weights import Weights, load_weights, read_weights
from pitstop.train.task import (
    BatchT,
    DrawsMeasured,
    InfersFiles,
    Submission,
    TakesSizes,
    Task,
    WritesOutputs,
    WritesSubmission,
)


def evaluate_checkpoint(
    config: RunConfig,
    task: Task[BatchT],
    checkpoint: Path,
    *,
    submission: Submission | None = None,
    pictures: int | None = None,
) -> EvaluationRecord | None:
    """Measure the quality of trained weights; None on all ranks but the first.

    Args:
        config: Of the run.
        task: What it trains.
        checkpoint: Where the weights are.
        submission: A file of answers to write beside, for a challenge.
        pictures: Rows of pictures to keep in the run's folder, of a task that draws what the whole
            evaluation found; None for none.

    Raises:
        PitstopError: Where configuration, checkpoint or data cannot be used, or the workload has
            nothing to hand in.
    """
    if submission is not None:
        _require_submission(task).expect_submission()
    if config.checkpoint.best_of is not None:
        require_metric(task, config.checkpoint.best_of)
    with _trained(config, task, checkpoint) as trained:
        trained.model.eval()
        collector, state = gather(
            task,
            trained.model,
            trained.batches(),
            precision=trained.precision,
            device=trained.device,
            ranks=trained.ranks,
        )
        metrics = collector.result(state)
        facts = trained.facts()
        if not trained.ranks.is_first:
            return None
        if submission is not None:
            written = _require_submission(task).write_submission(collector, state, submission)
            facts["notes"] = (*facts["notes"], *written)
        if pictures is not None:
            refuse_ranks(trained.ranks)
            assert isinstance(task, DrawsMeasured), "the caller has looked"
            run = config.run.work_dir / config.run.name
            keep_pictures(
                run, lambda place: task.draw_measured(collector, state, place, count=pictures)
            )
        return EvaluationRecord(metrics=metrics, **facts)


def _require_submission(task: Task[BatchT]) -> WritesSubmission:
    if not isinstance(task, WritesSubmission):
        raise ConfigError(f"{task.name} has nothing to hand in; leave --submit out")
    return task


def infer_checkpoint(
    config: RunConfig, task: Task[BatchT], checkpoint: Path, folder: Path
) -> InferenceRecord | None:
    """Write the outputs of trained weights to a new folder; None on all ranks but the first.

    Raises:
        PitstopError: Where configuration, checkpoint or data cannot be used, the folder is in use,
            or the workload has no outputs to write.
    """
    if not isinstance(task, WritesOutputs):
        raise ConfigError(f"the workload {task.name} has no outputs to write")
    refuse_used_root(folder)
    if isinstance(task, InfersFiles) and task.names_files():
        return _infer_files(config, task, checkpoint, folder)
    with _trained(config, task, checkpoint) as trained:
        _make_folder(folder)
        order = eval_order(len(task.eval_samples()), config.eval, trained.ranks)
        outputs = infer(
            task,
            trained.model,
            trained.batches(),
            precision=trained.precision,
            device=trained.device,
        )
        files = 0
        for indices, (batch, output) in zip(order.rest(), outputs, strict=True):
            files += len(task.write_output(output, batch, indices, folder))
        files = trained.over_ranks(files)
        facts = trained.facts()
        if not trained.ranks.is_first:
            return None
        return InferenceRecord(output=str(folder), files=files, **facts)


@torch.inference_mode()
def _infer_files(
    config: RunConfig, task: Any, checkpoint: Path, folder: Path
) -> InferenceRecord | None:
    """Run over files beside the data set; one rank does it, for they are a sequence."""
    with _trained(config, task, checkpoint, with_data=False) as trained:
        if trained.ranks.world_size > 1:
            raise ConfigError(
                f"files of their own are worked on by one process, not {trained.ranks.world_size}: "
                "each begins where the last one ended; start it without torchrun"
            )
        _make_folder(folder)
        trained.model.eval()
        with trained.precision.autocast():
            made = task.infer_files(trained.model, folder, trained.device)
        trained.samples = made.samples
        facts = trained.facts()
        facts["notes"] = (*facts["notes"], *made.notes)
        return InferenceRecord(output=str(folder), files=made.files, **facts)


@dataclass(slots=True, kw_only=True)
class _Trained(Generic[BatchT]):
    """A model with its weights, and this rank's share of the data."""

    name: str
    task: Task[BatchT]
    model: nn.Module
    weights: Weights
    precision: Precision
    device: torch.device
    ranks: Ranks
    loader: Loader[BatchT] | None
    """None where files of their own are read instead of the data set."""
    started_s: float
    samples: int = 0

    def batches(self) -> Iterator[BatchT]:
        """Give this rank's batches, counting their samples."""
        assert self.loader is not None
        for batch, _ in self.loader:
            self.samples += self.task.samples_in(batch)
            yield batch

    def over_ranks(self, count: int) -> int:
        """Add a count over all ranks; all of them must ask."""
        return int(self.ranks.sum(torch.tensor(count, device=self.device)).item())

    def facts(self) -> dict[str, Any]:
        """Say what was done, after the last batch; all ranks must ask."""
        samples = self.over_ranks(self.samples)
        wall_s = time.perf_counter() - self.started_s
        return {
            "name": self.name,
            "workload": self.task.name,
            "checkpoint": str(self.weights.path),
            "step": self.weights.step,
            "averaged": self.weights.averaged,
            "samples": samples,
            "wall_s": wall_s,
            "samples_per_s": samples / wall_s,
            "ranks": self.ranks.world_size,
            "device": self.device.type,
            "precision": self.precision.kind,
            "peak_device_bytes": _peak_bytes(self.device),
            "notes": self.weights.notes,
        }


@contextmanager
def _trained(
    config: RunConfig, task: Task[BatchT], checkpoint: Path, *, with_data: bool = True
) -> Iterator[_Trained[BatchT]]:
    weights = read_weights(checkpoint)
    with ExitStack() as stack:
        ranks = join_ranks()
        stack.callback(leave_ranks)
        device = choose_device(ranks)
        precision = Precision(config.train.precision, device, config.train.scaler)
        precision.apply_to_process()
        torch.use_deterministic_algorithms(config.run.deterministic)
        if not with_data and isinstance(task, TakesSizes):
            task.take_sizes(weights.tensors)
        model = task.build_model()
        load_weights(model, weights)
        model.to(device)
        loader = None
        if with_data:
            loader = stack.enter_context(eval_loader(task, config.eval, config.loader, ranks))
        # From here on every rank works on the data: the first one's clock is that of all.
        ranks.barrier()
        yield _Trained(
            name=config.run.name,
            task=task,
            model=model,
            weights=weights,
            precision=precision,
            device=device,
            ranks=ranks,
            loader=loader,
            started_s=time.perf_counter(),
        )


def _peak_bytes(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _make_folder(folder: Path) -> None:
    """Make the folder once all ranks have seen that it was free."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {folder}: {error.strerror}; name another folder") from error
