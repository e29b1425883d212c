"""What the benchmarks of quality share: runs beside each other, and data that can be kept."""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import yaml

from pitstop.config.dump import to_yaml
from pitstop.config.sections import RunConfig
from pitstop.train.run import TrainingRun
from pitstop.train.state.checkpoint import find_newest_whole
from progress import say

Row = dict[str, Any]


def run_beside(
    run: Callable[..., Row], calls: Iterable[tuple[Any, ...]], jobs: int
) -> Iterator[Row]:
    """Make the calls, so many at a time, each in a process of its own; rows come as they finish.

    Networks this small leave a GPU idle most of the time, waiting for their host, so several can
    share it.
    """
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(run, *call) for call in calls]):
            row = done.result()
            say(json.dumps(row))
            yield row


def trained(config: RunConfig, task: Any) -> Row:
    """Train to the end; give the metrics of the last weights, and the seconds it took."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    TrainingRun(config=config, config_yaml=to_yaml(config), task=task).run()
    took_s = time.perf_counter() - began
    checkpoint, _ = find_newest_whole(config.run.work_dir / config.run.name / "checkpoints")
    assert checkpoint is not None
    return {"took_s": took_s, **checkpoint.manifest.metrics}


def settings_of(config: RunConfig, root: Path) -> Row:
    """Give all settings of a run, without the place on this machine."""
    return yaml.safe_load(to_yaml(config).replace(str(root), "GENERATED"))


@contextmanager
def data_folder(kept: Path | None) -> Iterator[Path]:
    """Give the folder for generated data: the named one, which stays, or one that goes away."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
