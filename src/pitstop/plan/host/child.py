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
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final

import psutil
import torch

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
from pitstop.plan.dry_run.step import NoSink, blank_batch
from pitstop.plan.host.trial import ProcessSizes, TrialAnswer, TrialRequest
from pitstop.records.store import from_json, write_json
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer
from pitstop.train.task import MakesBlankBatches, Task
from pitstop.workloads.catalogue import build_task, outside_kinds
from pitstop_probe import Clock

_TURNS: Final = 2
"""How often each slot of a ring is used in a trial; the first time its pages are made."""
_STEPS: Final = 3
"""Of a job that computes on the processor: in the first the optimizer makes its state."""


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
        # Last: workers start before the first step, and share nothing of it.
        step_bytes=_step_bytes(planned, task) if request.computes_here else 0,
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
        step_bytes=0,
        notes=(notes[-1],),
    )


def _step_bytes(config: RunConfig, task: Task[Any]) -> int:
    """Take real steps on the processor; give what they add to this process at the most.

    Measured and not counted: beside the tensors there are what libraries set up for their kernels
    and what the C library keeps of tensors that are gone.
    """
    import resource  # not on Windows, where a trial is of jobs with a GPU alone

    before, _ = _own_bytes()
    trainer = build_trainer(config, task, Ranks(), torch.device("cpu")).trainer
    clock = Clock(NoSink())
    batch = blank_batch(task, config.train.batch_size)
    for step in range(_STEPS):
        clock.begin_step()
        trainer.train_step(repeat(batch), step=step, clock=clock)
        clock.end_step()
    after, _ = _own_bytes()
    # A step is at its peak for milliseconds; the kernel remembers it.
    resident = psutil.Process().memory_info().rss
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return max(0, after + max(0, most - resident) - before)


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
    deal = Deal(
        batch_size=config.train.batch_size,
        seed=config.run.seed,
        rank=0,
        world_size=1,
        drop_last=config.loader.drop_last,
    )
    section = _trial_section(config.loader, start_method, workers)
    with build_loader(samples, train_order(task, samples, deal), task.collate, section) as loader:
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
