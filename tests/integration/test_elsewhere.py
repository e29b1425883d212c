"""A short training where fork, /proc, memfd, fcntl and Triton do not exist, as on other systems."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Runs in every process: the one that trains, and again in each worker that spawn starts.
SCRIPT = """
import multiprocessing, os, pathlib, sys

import psutil, torch  # these have other insides on other systems, and need those of this one here

for module in ("fcntl", "resource", "termios", "pwd", "grp", "triton"):
    sys.modules[module] = None
for name in ("fork", "memfd_create", "posix_fallocate", "sched_getaffinity", "getuid"):
    if hasattr(os, name):
        delattr(os, name)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
multiprocessing.context._default_context.set_start_method("spawn", force=True)

hidden = ("/proc", "/sys", "/dev/shm")
real = {name: getattr(pathlib.Path, name) for name in ("is_dir", "exists", "open", "iterdir")}


def gone(self):
    return str(self).startswith(hidden)


def open_(self, *args, **options):
    if gone(self):
        raise FileNotFoundError(2, "No such file or directory", str(self))
    return real["open"](self, *args, **options)


pathlib.Path.is_dir = lambda self: not gone(self) and real["is_dir"](self)
pathlib.Path.exists = lambda self: not gone(self) and real["exists"](self)
pathlib.Path.open = open_
pathlib.Path.read_text = lambda self, **options: open_(self).read()
is_dir = os.path.isdir
os.path.isdir = lambda path: not str(path).startswith(hidden) and is_dir(path)


def main(folder):
    from pitstop.config.load import config_from
    from pitstop.config.dump import to_yaml
    from pitstop.data.loader import ring
    from pitstop.records.store import read_run
    from pitstop.train.run import TrainingRun
    from pitstop.workloads.catalogue import build_task
    from pitstop.workloads.deblur.synthetic import make_clips

    torch.set_num_threads(1)
    assert not ring.has_rings()
    root = folder / "clips"
    make_clips(root, clips={"train": 1, "test": 1}, frames=3, size=(64, 64), seed=0, spikes=False)
    settings = {
        "model.kind": "vrt",
        "model.depths": "[1, 1, 1, 1, 1, 1, 1, 1, 1]",
        "model.embed_dims": "[12, 12, 12, 12, 12, 12, 12, 12, 12]",
        "model.indep_reconsts": "[8]",
        "model.heads": 2,
        "model.window": "[2, 8, 8]",
        "model.deformable_groups": 2,
        "data.root": root,
        "data.crop": 64,
        "data.clip_len": 2,
        "train.steps": 3,
        "loader.workers": 1,
        "cache.budget": sys.argv[2],
        "run.work_dir": folder,
        "log.every_steps": 1,
        "checkpoint.every_steps": "null",
    }
    config = config_from({}, [f"{key}={value}" for key, value in settings.items()]).config
    run = TrainingRun(config=config, config_yaml=to_yaml(config), task=build_task(config))
    assert run.run().status == "finished"
    record = read_run(folder / "run").first
    applied = [r.values for r in record.readings if r.kind == "applied"]
    [loader] = [a["proof"] for a in applied if a["setting"] == "loader.workers"]
    assert loader["start_method"] == "spawn", loader
    assert [r.values["batches"] for r in record.readings if r.kind == "loader"] == [1, 1, 1]
    if sys.argv[2] != "0":
        assert [r for r in record.readings if r.kind == "cache"][-1].values["items"] == 6
    print("trained")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["0", "8MiB"])
def test_a_short_training_runs_where_only_spawn_exists(tmp_path: Path, budget: str) -> None:
    script = tmp_path / "elsewhere.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path), budget]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout.splitlines()[-1:] == ["trained"], ended.stderr
