"""``python -m pitstop.verify.engine_child FOLDER``: trains what an engine trial describes."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pitstop.config.dump import to_yaml
from pitstop.config.load import load_config
from pitstop.errors import PitstopError
from pitstop.train.observers import Observer, RunStart, Status
from pitstop.train.run import TrainingRun
from pitstop.verify.engine_trial import CONFIG, METRICS, SETTINGS
from pitstop.workloads.catalogue import build_task, outside_kinds

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class GradientKeeper(Observer):
    """Writes the gradients of the first updates as the optimizer gets them: scaled and clipped.

    Args:
        folder: Where ``gradients-0.npz`` and so on go.
        steps: Updates to keep.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder = folder
        self._steps = steps
        self._kept = 0
        self._hook: RemovableHandle | None = None

    def started(self, start: RunStart) -> None:
        """Watch updates from here on: optimizers are tried out before the first step."""
        del start
        self._hook = register_optimizer_step_pre_hook(self._keep)

    def ended(self, step: int, status: Status, reason: str) -> None:
        """Let go."""
        del step, status, reason
        if self._hook is not None:
            self._hook.remove()

    def _keep(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._kept >= self._steps:
            return
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        arrays = {
            f"{place:05d}": parameter.grad.detach().float().cpu().numpy()
            for place, parameter in enumerate(parameters)
            if parameter.grad is not None
        }
        np.savez(self._folder / f"gradients-{self._kept}.npz", **arrays)
        self._kept += 1


def main(folder: Path) -> int:
    """Train; the exit code is that of ``pitstop train``."""
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    kinds = outside_kinds()
    config = load_config(folder / CONFIG, settings["overrides"], kinds=kinds).config
    task = build_task(config)
    directions = json.dumps(dict(task.higher_is_better))
    (folder / METRICS).write_text(directions, encoding="utf-8")
    outcome = TrainingRun(
        config=config,
        config_yaml=to_yaml(config, kinds=kinds),
        task=task,
        observers=(GradientKeeper(folder, settings["gradient_steps"]),),
        resume=settings["resume"],
    ).run()
    return 0 if outcome.status == "finished" else 1


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except PitstopError as error:
        sys.exit(f"error: {error}")
