"""Evaluations on shapes alone, held against the same evaluation really run on the processor."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.config.load import load_config
from pitstop.plan.dry_run.configured import without_files
from pitstop.plan.dry_run.request import Answer, Request, trace_all
from pitstop.train.evaluation.quality import gather_into
from pitstop.train.optim.precision import Precision
from pitstop.train.task import MakesBlankBatches, MakesBlankEvaluation, MakesBlankMetrics
from pitstop.workloads.catalogue import build_task

torch.set_num_threads(1)

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
PLAIN = ("model.kernels=reference", "train.precision=fp32")
CASES = {
    "bev/demo.yaml": PLAIN,
    "deblur/demo.yaml": (*PLAIN, "data.eval_crop=192", "eval.tile=96"),
    "reid/demo.yaml": (*PLAIN, "data.flip_test=true"),
}


class MostHeld(TorchDispatchMode):
    """Adds up the memory behind every outcome that is alive, and keeps the most that there was."""

    def __init__(self) -> None:
        super().__init__()
        self.most_bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outcome = func(*args, **(kwargs or {}))
        given = {_storage(each).cdata for each in _tensors((args, kwargs))}
        for tensor in _tensors(outcome):
            reference = _storage(tensor)
            if reference.cdata not in given:
                self._alive[reference.cdata] = (reference, tensor.untyped_storage().nbytes())
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.most_bytes = max(self.most_bytes, sum(size for _, size in self._alive.values()))
        return outcome


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


class _Nothing:
    def update(self, output: Any, batch: Any) -> None:
        pass

    def state(self) -> Tensor:
        return torch.zeros(0)

    def result(self, state: Tensor) -> dict[str, float]:
        return {}


def copied(batch: Any) -> Any:
    """A batch as it comes to a device: in memory of its own."""
    copies = {
        item.name: value.clone()
        for item in fields(batch)
        if isinstance(value := getattr(batch, item.name), Tensor)
    }
    return replace(batch, **copies)


def measured_bytes(name: str) -> int:
    """Most that an evaluation of two batches makes on the processor."""
    with ExitStack() as stack:
        config, _ = without_files(load_config(ROOT / "configs" / name, CASES[name]).config, stack)
        task = build_task(config)
        model = task.build_model().eval()
    size = config.eval.batch_size
    if isinstance(task, MakesBlankEvaluation):
        batch = task.blank_eval_batch(size)
    else:
        assert isinstance(task, MakesBlankBatches)
        batch = task.blank_batch(size)
    metrics = task.blank_metrics() if isinstance(task, MakesBlankMetrics) else _Nothing()

    def batches() -> Iterator[Any]:
        for _ in range(2):
            yield copied(batch)

    with torch.no_grad(), MostHeld() as held:
        gather_into(metrics, task, model, batches(), precision=Precision("fp32", CPU), device=CPU)
    return held.most_bytes


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    requests = [
        Request(config=str(ROOT / "configs" / name), overrides=overrides, part="evaluation")
        for name, overrides in CASES.items()
    ]
    return dict(zip(CASES, trace_all(requests), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_evaluation_holds_what_it_was_planned_to(
    name: str, answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = answers[name].evaluation
    assert planned is not None, answers[name].error
    # Reference kernels go piece by piece on a processor, where nothing is compiled.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert planned.owners["temporary"] == pytest.approx(measured_bytes(name), rel=0.01)
