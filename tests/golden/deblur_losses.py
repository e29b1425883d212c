"""Trains the deblur demo for 50 steps in this process and prints every loss, to the last bit.

Run as ``python deblur_losses.py CONFIG FOLDER``, in the environment `test_golden_losses.py` gives.
"""

import sys
from pathlib import Path

import torch

from pitstop.config.dump import to_yaml
from pitstop.config.load import load_config
from pitstop.records.store import read_run
from pitstop.train.run import TrainingRun
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.synthetic import make_clips

STEPS = 50


def main() -> None:
    demo, folder = Path(sys.argv[1]), Path(sys.argv[2])
    # Its kernels are chosen by processor.
    torch.backends.mkldnn.enabled = False
    clips = folder / "clips"
    make_clips(clips, clips={"train": 2, "test": 1}, frames=6, size=(48, 64), seed=0, spikes=False)
    overrides = [
        f"data.root={clips}",
        f"run.work_dir={folder}",
        f"train.steps={STEPS}",
        "log.every_steps=1",
        "eval.every_steps=null",
        "checkpoint.best_of=null",
        "checkpoint.every_steps=null",
        # An empty last layer hides all others from the first update.
        "model.start=random",
    ]
    config = load_config(demo, overrides).config
    TrainingRun(config=config, config_yaml=to_yaml(config), task=build_task(config)).run()
    losses = read_run(folder / config.run.name).first.scalars["loss"]
    assert losses.step.tolist() == list(range(STEPS))
    for loss in losses.value.tolist():
        sys.stdout.write(f"{loss.hex()}\n")


if __name__ == "__main__":
    main()
