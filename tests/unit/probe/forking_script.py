"""Trains, watched, on a device that must not be touched after a fork; forks in every way.

Run as ``python forking_script.py FOLDER HOLDER``. Whatever a child does to something that another
process made is written to FOLDER/touched; how each child ended to FOLDER/ended.json.
"""

# pyright: reportPrivateUsage=false

import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import pitstop_probe.device
from pitstop_probe import Clock, RecordWriter, cuda_timer
from pitstop_probe.losses import Losses

PLAIN: Any = torch._C._disabled_torch_function_impl
IS_MAIN = __name__ == "__main__"
ALARM = os.open(Path(sys.argv[1]) / "touched", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
PARENT = os.getpid()
WAY = ["none"]


def touch(
    maker: int, what: str, *, getpid: Any = os.getpid, write: Any = os.write, way: Any = WAY
) -> None:
    """Sound the alarm in a process that did not make something; at the interpreter's end, too."""
    if getpid() != maker:
        write(ALARM, f"{way[0]}: {what}\n".encode())


class BaseEvent:
    def __init__(self, *, enable_timing: bool = False) -> None:
        self.maker = os.getpid()

    def record(self, stream: Any = None) -> None:
        touch(self.maker, "recorded")

    def query(self) -> bool:
        touch(self.maker, "queried")
        return len(self.__dict__) > 0

    def elapsed_time(self, end: Any) -> float:
        touch(self.maker, "read")
        return 0.01

    def __del__(self, touch: Any = touch) -> None:
        touch(self.maker, "event destroyed")


class Event(BaseEvent):
    def synchronize(self) -> None:
        touch(self.maker, "waited for")


class Pinned(torch.Tensor):
    """Memory that a device copies to: whoever frees it asks the device."""

    __torch_function__ = PLAIN

    def __del__(self, maker: int = PARENT, touch: Any = touch) -> None:
        touch(maker, "pinned memory freed")


class OnDevice(torch.Tensor):
    __torch_function__ = PLAIN
    is_cuda = True


def of_parent(what: str, result: Any) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        touch(PARENT, what)
        return result

    return call


def put_device_in_place() -> None:
    """Make torch believe in a GPU, in this process alone."""
    cuda: Any = torch.cuda
    plain_empty, take = torch.empty, Losses.take

    def empty(*size: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        made = plain_empty(*size, **kwargs)
        return made.as_subclass(Pinned) if pin_memory else made

    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: os.getpid() == PARENT
    cuda.is_current_stream_capturing = of_parent("asked for capture", result=False)
    cuda.memory_stats = of_parent("asked for memory", result={})
    cuda.synchronize = of_parent("waited for device", result=None)
    cuda.current_stream = of_parent("asked for stream", result=None)
    cuda.Event = Event
    # A build with CUDA asks its driver here, and there is none.
    for name in ("_cuda_getCurrentRawStream", "_cuda_getDevice"):
        if hasattr(torch._C, name):
            setattr(torch._C, name, lambda *_: 0)
    torch.empty = empty
    pitstop_probe.device._quickest_launch_ns = lambda _: 1000
    Losses.take = lambda self, step, loss: take(
        self, step, loss.as_subclass(OnDevice) if os.getpid() == PARENT else loss
    )


class Model(nn.Module):
    during: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.during()
        return self.inner(batch)


class Training:
    def __init__(self, around: Any) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.around = around

    def steps(self, count: int) -> float:
        loss = torch.zeros(())
        for _ in range(count):
            with self.around():
                self.optimizer.zero_grad()
                loss = self.model(torch.ones(4, 8)).square().mean()
                loss.backward()
                self.optimizer.step()
        return loss.item()


class Rows(Dataset[torch.Tensor]):
    """Of which each reads others with a loader of its own, where the process may have one."""

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            gc.collect()
        if self.inner is not None:
            return next(iter(self.inner))[0][0]
        return torch.ones(8) * torch.tensor(index).item()


def work(_: int = 0) -> int:
    gc.collect()
    return int(torch.ones(2).sum().item())


def train_in_child(training: Training | None = None) -> None:
    (Training(Nothing) if training is None else training).steps(60)


class Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def loader(method: str, dataset: Any = None) -> Callable[[Training], int]:
    def run(_: Training) -> int:
        made = DataLoader(dataset or Rows(), 2, num_workers=1, multiprocessing_context=method)
        return 0 if sum(len(batch) for batch in made) == 8 else 1

    return run


def nested_loaders(_: Training) -> int:
    """A loader inside this process's own, and a second one while the first is under way."""
    inner = DataLoader(TensorDataset(torch.ones(1, 8)), num_workers=1)
    outer = iter(DataLoader(Rows(), 2, num_workers=1, multiprocessing_context="fork"))
    next(outer)
    total = len(next(iter(DataLoader(Rows(inner), 2))))
    return 0 if total + sum(len(batch) for batch in outer) == 8 else 1


def by_hand(end: Callable[[Training], object]) -> Callable[[Training], int]:
    def run(training: Training) -> int:
        child = os.fork()
        if child == 0:
            end(training)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    return run


def in_a_step(training: Training) -> int:
    """Fork in the middle of a step, which the child ends, too, before it leaves."""
    children: list[int] = []

    def fork() -> None:
        if not children:
            children.append(os.fork())

    training.model.during = fork
    training.steps(1)
    if children == [0]:
        gc.collect()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])


def process(target: Callable[..., object], *given: str) -> Callable[[Training], int]:
    def run(training: Training) -> int:
        arguments = (training,) if given else ()
        child = multiprocessing.get_context("fork").Process(target=target, args=arguments)
        child.start()
        child.join()
        return child.exitcode or 0

    return run


def pool(_: Training) -> int:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return 0 if workers.map(work, range(4)) == [2] * 4 else 1


def leave(_: Training) -> None:
    sys.exit(0)


def forget_and_leave(training: Training) -> None:
    training.__dict__.clear()
    gc.collect()
    sys.exit(0)


def fail(_: Training) -> None:
    raise ValueError("planted")


def fork_again(_: Training) -> None:
    child = os.fork()
    if child == 0:
        gc.collect()
        sys.exit(0)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


WAYS: dict[str, tuple[Callable[[Training], int], int]] = {
    "loader, fork": (loader("fork"), 0),
    "loader, forkserver": (loader("forkserver"), 0),
    "loader, spawn": (loader("spawn"), 0),
    "loaders in loaders": (nested_loaders, 0),
    "os.fork, os._exit": (by_hand(lambda _: None), 0),
    "os.fork, sys.exit": (by_hand(leave), 0),
    "os.fork, all let go": (by_hand(forget_and_leave), 0),
    "os.fork, failed": (by_hand(fail), 1),
    "os.fork, twice": (by_hand(fork_again), 0),
    "os.fork, in a step": (in_a_step, 0),
    "os.fork, trains": (by_hand(train_in_child), 0),
    "os.fork, trains and leaves": (by_hand(lambda t: (train_in_child(), leave(t))), 0),
    "process": (process(work), 0),
    "process, trains": (process(train_in_child), 0),
    "process, trains on": (process(train_in_child, "what its parent trains"), 0),
    "pool": (pool, 0),
}


def watched_by_probe(folder: Path) -> Iterator[Any]:
    from pitstop_probe.attach import attach

    measurement = attach(str(folder))
    yield Nothing
    measurement.close()


def watched_by_clock(folder: Path) -> Iterator[Any]:
    writer = RecordWriter(str(folder / "rank-0.jsonl"))
    clock = Clock(writer, cuda_timer(), timeline_every=1)

    class OneStep:
        def __enter__(self) -> None:
            clock.begin_step()
            self.span = clock.span("all")
            self.span.__enter__()

        def __exit__(self, *_: object) -> None:
            self.span.__exit__()

    yield OneStep
    clock.close()
    writer.close()


HOLDERS = {"probe": watched_by_probe, "clock": watched_by_clock}


def main(folder: Path, holder: str) -> None:
    put_device_in_place()
    watching = HOLDERS[holder](folder)
    training = Training(next(watching))
    ended: dict[str, Any] = {}
    for way, (run, expected) in WAYS.items():
        WAY[0] = way
        training.steps(30)
        ended[way] = [run(training), expected]
        assert os.getpid() == PARENT
    ended["loss"] = training.steps(1)
    next(watching, None)
    (folder / "ended.json").write_text(json.dumps(ended), encoding="utf-8")


if IS_MAIN:
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2])
