"""Reinforcement learning: an environment in a Python loop, an update at the end of an episode."""

import math
import random

import torch
from torch import nn
from torch.distributions import Categorical

EPISODES = 60


class Pole:
    """A pole on a cart, after the usual equations."""

    def reset(self) -> list[float]:
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action: int) -> tuple[list[float], bool]:
        position, speed, angle, turn = self.state
        force = 10.0 if action else -10.0
        pull = (force + 0.05 * turn**2 * math.sin(angle)) / 1.1
        swing = (9.8 * math.sin(angle) - math.cos(angle) * pull) / (
            0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
        )
        push = pull - 0.05 * swing * math.cos(angle) / 1.1
        self.state = [
            position + 0.02 * speed,
            speed + 0.02 * push,
            angle + 0.02 * turn,
            turn + 0.02 * swing,
        ]
        return self.state, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    pole = Pole()
    for episode in range(EPISODES):
        state, over, chosen = pole.reset(), False, []
        while not over and len(chosen) < 200:
            choice = Categorical(logits=policy(torch.tensor(state)))
            action = choice.sample()
            chosen.append(choice.log_prob(action))
            state, over = pole.step(int(action))
        gains = torch.arange(len(chosen), 0, -1, dtype=torch.float32)
        loss = -(torch.stack(chosen) * (gains - gains.mean())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"episode {episode}, lasted {len(chosen)}, loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
