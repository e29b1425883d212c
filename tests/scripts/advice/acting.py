"""Trains by acting: one environment is stepped in Python before every update, without a loader.

The environment is of a package called gymnasium, or of a stand-in for it on the path.
"""

import gymnasium  # pyright: ignore[reportMissingImports] - a stand-in is put on the path
import torch
from torch import nn


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    env, policy = gymnasium.make("Slow-v0"), nn.Linear(16, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    env.reset()
    for action in range(120):
        observation, *_ = env.step(action)
        loss = policy(torch.tensor(observation)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
