"""Ends a script that has no end of its own, and seeds one that nobody seeded.

It ends after ZOO_STEPS optimizer steps with exit code 0; the seed is ZOO_SEED. With ZOO_OLD_NUMPY a
name that NumPy had before version 1.24 is there again.
"""

import os
import random

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


class _Countdown:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        # Before the step that would be one too many, so that the last one is whole.
        if self.left == 0:
            print("zoo: enough steps", flush=True)
            raise SystemExit(0)
        self.left -= 1


def obey() -> None:
    """Do what the environment asks for."""
    seed = os.environ.get("ZOO_SEED")
    if seed:
        random.seed(int(seed))
        np.random.seed(int(seed))  # noqa: NPY002 - it is theirs, not ours
        torch.manual_seed(int(seed))
    if os.environ.get("ZOO_OLD_NUMPY"):
        np.int = int  # noqa: NPY001 - pyright: ignore[reportAttributeAccessIssue]
    steps = os.environ.get("ZOO_STEPS")
    if steps:
        register_optimizer_step_pre_hook(_Countdown(int(steps)))
