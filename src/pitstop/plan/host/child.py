"""A job's processes as they are before the first step, measured and ended again.

python -m pitstop.plan.host.child REQUEST.json ANSWER.json

The model is built and let go, since its code stays and its weights go to the device. Workers are
real ones of the run's own loader, first one and then two, so that what each adds is known.
"""

import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

import pitstop.train.run  # noqa: F401 - what a training process imports
from pitstop.config.load import load_config
from pitstop.config.sections import LoaderSection, RunConfig
from pitstop.data.host_memory import SizedSamples
from pitstop.data.loader.batches import Loader, build_loader
from pitstop.data.loader.sample_bytes import estimate_sample_bytes, tensor_sizes
from pitstop.data.loader.worker_settings import slots_for
from pitstop.data.sampling.samplers import Deal, train_order
from pitstop.errors import PitstopError
from pitstop.measure.host.process_tree import anonymous_bytes, tree_memory
from pitstop.plan.dry_run.configured import without_files
from pitstop.plan.host.trial import ProcessSizes, TrialAnswer, TrialRequest
from pitstop.records.store import from_json, write_json
from pitstop.train.task import MakesBlankBatches, Task
from pitstop.workloads.catalogue import build_task, outside_kinds

_TURNS: Final = 2
"""How often each slot of a ring is used in a trial; the first time its pages are made."""


def main() -> None:
    """Read a request, try it, write the answer."""
    request = from_json(Path(sys.argv[1]).read_text(encoding="utf-8"), TrialRequest)
    warnings.simplefilter("ignore")  # nobody would see them
    try:
        answer = TrialAnswer(sizes=_sizes(request))
    except PitstopError as error:
        answer = TrialAnswer(error=str(error))
    write_json(answer, Path(sys.argv[2]))


def _sizes(request: TrialRequest) -> ProcessSizes:
    config = load_config(Path(request.config), request.overrides, kinds=outside_kinds()).config
    with ExitStack() as stack:
        planned, notes = without_files(config, stack)
        task = build_task(planned)
    task.build_model()
    if request.computes_here:
        _compute()
    if planned.data.root is None:
        return _without_data(task, notes)
    samples = task.train_samples()
    task.eval_samples()
    own, private = _own_bytes()
    epochs = (0, *(at for at, _ in config.train.crop_schedule))
    first, both = (_tree_with(planned, task, request.start_method, count) for count in (1, 2))
    tensor_bytes, *_ = estimate_sample_bytes(samples, task.collate, epochs)
    batch_bytes = sum(tensor_bytes) * config.train.batch_size
    after, _ = _own_bytes()
    return ProcessSizes(
        process_bytes=own,
        private_bytes=private,
        tensor_bytes=tensor_bytes,
        decoded_bytes=samples.decoded_bytes if isinstance(samples, SizedSamples) else None,
        first_worker_bytes=max(0, first[0] - own - first[1] * batch_bytes),
        next_worker_bytes=max(0, both[0] - first[0] - (both[1] - first[1]) * batch_bytes),
        reading_bytes=max(0, after - own),
    )


def _without_data(task: Task[Any], notes: tuple[str, ...]) -> ProcessSizes:
    """Give the process alone, and a batch as its shapes are."""
    own, private = _own_bytes()
    sizes: tuple[int, ...] = ()
    if isinstance(task, MakesBlankBatches):
        sizes = tensor_sizes(task.blank_batch(1))
    return ProcessSizes(
        process_bytes=own,
        private_bytes=private,
        tensor_bytes=sizes,
        decoded_bytes=None,
        first_worker_bytes=None,
        next_worker_bytes=None,
        reading_bytes=0,
        notes=(notes[-1],),
    )


def _compute() -> None:
    """Have torch load what a step on the processor needs: convolutions, products, autograd."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten())
    model.append(nn.Linear(8 * 36, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.zeros(2, 3, 8, 8)).softmax(-1).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _own_bytes() -> tuple[int, int]:
    """Measure this process: all of it, and what is its alone."""
    gc.collect()
    memory = tree_memory()
    if memory is None:
        raise PitstopError("this system does not let a process read its own memory")
    return memory.own_bytes, min(memory.own_bytes, anonymous_bytes() or memory.own_bytes)


def _tree_with(
    config: RunConfig, task: Task[Any], start_method: str | None, workers: int
) -> tuple[int, int]:
    """Measure all processes once so many workers have filled every slot; give bytes and slots."""
    samples = task.train_samples()
    batches = train_order(task, samples, Deal.of(config))
    section = _trial_section(config.loader, start_method, workers)
    with build_loader(samples, batches, task.collate, section) as loader:
        if not len(loader):
            raise PitstopError("the dataset has less than one batch, so workers cannot be tried")
        slots = slots_for(loader.applied)
        for _ in islice(_epoch_after_epoch(loader), _TURNS * slots):
            pass
        gc.collect()
        memory = tree_memory()
        assert memory is not None, "it could be read before"
        return memory.tree_bytes, slots


def _epoch_after_epoch(loader: Loader[Any]) -> Iterator[object]:
    while True:
        yield from loader
        loader.set_epoch(loader.epoch + 1)


def _trial_section(section: LoaderSection, start_method: str | None, workers: int) -> LoaderSection:
    changes: dict[str, Any] = {
        "workers": workers,
        "prefetch": 1,
        "prefetch_bytes": None,
        "tune": "off",
        "persistent": True,
    }
    if start_method is not None:
        changes["start_method"] = start_method
    return section.model_copy(update=changes)


if __name__ == "__main__":
    main()
