"""Train a model that looks for a fixed point, with activation checkpointing that nothing needs.

The search runs without gradients and is most of the forward pass, so doing it again in the backward
pass costs nearly as much as all the rest, and the memory it saves is a few megabytes.

Slow with ``--checkpointing``. Fixed without.
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WARM_UP = 10


class FixedPoint(nn.Module):
    """Iterates to a point that its layer leaves in place; only the last round is learned from."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.rounds = rounds

    def forward(self, inputs: Tensor) -> Tensor:
        state = torch.zeros_like(inputs)
        with torch.no_grad():
            for _ in range(self.rounds):
                state = torch.tanh(self.layer(state) + inputs)
        return torch.tanh(self.layer(state) + inputs)


class Model(nn.Module):
    def __init__(self, *, checkpointing: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 448)
        self.blocks = nn.ModuleList([FixedPoint(448, 24)])
        self.head = nn.Linear(448, 10)
        self.checkpointing = checkpointing

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            if self.checkpointing:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        return self.head(hidden)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = Model(checkpointing=args.checkpointing)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(32, args.batch_size, 64)
    labels = torch.randint(0, 10, (32, args.batch_size))

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[step % 32]), labels[step % 32])
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
