"""On a GPU: scripts that fork in every way end as they do bare, watched or measured by hand."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCRIPT = '''
import gc
import multiprocessing
import os
import sys
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

FOLDER = sys.argv[2] if len(sys.argv) > 2 else ""


class Rows(Dataset):
    def __init__(self, inner=None):
        self.inner = inner

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 0:
            gc.collect()
        if self.inner is not None:
            return next(iter(self.inner))[0][0]
        return torch.full((64,), float(index)).to(torch.float32) * torch.tensor(index).item()


class Training:
    def __init__(self, device, step=nullcontext):
        torch.manual_seed(0)
        self.device, self.step = device, step
        self.model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def on(self, batch):
        with self.step():
            self.optimizer.zero_grad()
            batch = batch.to(self.device, non_blocking=True)
            loss = (self.model(batch) - 1.0).square().mean()
            loss.backward()
            self.optimizer.step()
        self.loss = loss

    def steps(self, count):
        for number in range(count):
            self.on(torch.full((8, 64), number / 10))


def epoch(training, method, **kwargs):
    made = DataLoader(Rows(), 2, num_workers=2, multiprocessing_context=method, **kwargs)
    for _ in range(2):
        for batch in made:
            training.on(batch)
        # A second loader, for validation.
        with torch.no_grad():
            for batch in DataLoader(Rows(), 4, num_workers=1):
                training.model(batch.to(training.device))


def nested(training):
    inner = DataLoader(TensorDataset(torch.ones(4, 64)), num_workers=1)
    outer = iter(DataLoader(Rows(), 2, num_workers=1, pin_memory=True))
    training.on(next(outer))
    for batch in DataLoader(Rows(inner), 8):
        training.on(batch)
    for batch in outer:
        training.on(batch)


def by_hand(end):
    def run(training):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            end(training)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    return run


def leave(training):
    gc.collect()
    sys.exit(0)


def train_here(training):
    own = Training("cpu")
    own.steps(40)
    print("a child trained to", own.loss.item(), flush=True)


def train_and_leave(training):
    train_here(training)
    sys.exit(0)


def work(_=0):
    gc.collect()
    return torch.ones(2).sum().item()


def process(target):
    def run(training):
        child = multiprocessing.get_context("fork").Process(target=target, args=(None,))
        child.start()
        child.join()
        return child.exitcode

    return run


def pool(training):
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return workers.map(work, range(4))


WAYS = {
    "fork": lambda t: epoch(t, "fork"),
    "fork, pinned": lambda t: epoch(t, "fork", pin_memory=True),
    "fork, persistent": lambda t: epoch(t, "fork", pin_memory=True, persistent_workers=True),
    "spawn": lambda t: epoch(t, "spawn", pin_memory=True),
    "forkserver": lambda t: epoch(t, "forkserver", pin_memory=True),
    "nested": nested,
    "os._exit": by_hand(lambda t: gc.collect()),
    "sys.exit": by_hand(leave),
    "trains": by_hand(train_here),
    "trains and leaves": by_hand(train_and_leave),
    "process": process(work),
    "process, trains": process(train_here),
    "pool": pool,
}


def every_way(training):
    training.steps(100)
    for name, run in WAYS.items():
        print(name, run(training), training.loss.item(), flush=True)
        training.steps(10)


def every_step(training):
    """A fork in each step around the end of warm-up, of measuring and of the profile."""
    for number in range(130):
        training.steps(1)
        if number > 95 or 15 < number < 25:
            loader = DataLoader(Rows(), 16, num_workers=1, pin_memory=number % 2 == 0)
            for batch in loader:
                training.on(batch)
    print(training.loss.item())


def main(way):
    if way == "attached":
        import pitstop

        with pitstop.attach(FOLDER):
            every_way(Training("cuda"))
    elif way == "clock":
        from pitstop_probe import Clock, RecordWriter, cuda_timer

        writer = RecordWriter(os.path.join(FOLDER, "rank-0.jsonl"))
        clock = Clock(writer, cuda_timer(), timeline_every=1)

        class Step:
            def __enter__(self):
                clock.begin_step()
                self.span = clock.span("all").__enter__()

            def __exit__(self, *_):
                self.span.__exit__()

        every_way(Training("cuda", Step))
        clock.close()
        writer.close()
    elif way == "each step":
        every_step(Training("cuda"))
    else:
        every_way(Training("cuda"))


if __name__ == "__main__":
    main(sys.argv[1])
'''

_DOCTOR = (sys.executable, "-m", "pitstop", "doctor", "--detach")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forks") / "train.py"
    path.write_text(SCRIPT)
    return path


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


@pytest.fixture(scope="module")
def bare(script: Path) -> "subprocess.CompletedProcess[str]":
    done = run(sys.executable, str(script), "bare")
    assert done.returncode == 0, done.stderr
    return done


def assert_as(
    bare: "subprocess.CompletedProcess[str]", seen: "subprocess.CompletedProcess[str]"
) -> None:
    assert seen.stdout == bare.stdout, seen.stderr
    assert seen.returncode == bare.returncode, seen.stderr
    for word in ("measuring stopped", "not measured in", "not attached", "incomplete"):
        assert word not in seen.stderr
    assert "CUDA error" not in seen.stderr


def test_a_watched_script_ends_as_it_does_bare(
    script: Path, bare: "subprocess.CompletedProcess[str]", tmp_path: Path
) -> None:
    record = tmp_path / "record"
    options = ("--steps", "5000", "--record", str(record), "--")
    assert_as(bare, run(*_DOCTOR, *options, sys.executable, str(script), "bare"))
    assert (record / "rank-0.jsonl").exists()


@pytest.mark.parametrize("way", ["attached", "clock"])
def test_a_script_that_measures_itself_ends_as_it_does_bare(
    script: Path, bare: "subprocess.CompletedProcess[str]", tmp_path: Path, way: str
) -> None:
    record = tmp_path / "record"
    record.mkdir()
    assert_as(bare, run(sys.executable, str(script), way, str(record)))
    assert (record / "rank-0.jsonl").exists()


def test_forks_in_steps_that_are_profiled_change_nothing(script: Path, tmp_path: Path) -> None:
    command = (sys.executable, str(script), "each step")
    options = ("--steps", "100", "--record", str(tmp_path / "record"), "--")
    bare = run(*command)
    assert bare.returncode == 0, bare.stderr
    assert_as(bare, run(*_DOCTOR, *options, *command))
