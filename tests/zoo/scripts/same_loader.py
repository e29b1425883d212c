"""One loader for training and for evaluating: after every pass, or in the first step.

It prints the share of data in its steps by a stopwatch of its own.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PASSES, BATCHES = 10, 12
BATCH_S, TRAINING_S, EVALUATING_S = 0.003, 0.015, 0.002


class Numbers(Dataset[torch.Tensor]):
    """A batch of one that takes a while."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(BATCH_S)
        return torch.full((8,), float(index))


class Model(nn.Module):
    """One layer that takes a while, longer where it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        time.sleep(TRAINING_S if self.training else EVALUATING_S)
        return self.layer(numbers)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[torch.Tensor]) -> None:
    """Go through the batches that it trains on."""
    model.eval()
    for numbers in loader:
        model(numbers)
    model.train()


def train(model: nn.Module, is_due: Callable[[int], bool]) -> None:
    """Train; time the batches of the steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Numbers())
    waited_s = worked_s = 0.0
    for _ in range(PASSES):
        start_s = time.perf_counter()
        for step, numbers in enumerate(loader):
            there_s = time.perf_counter()
            loss = model(numbers).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item():.6f}")
            waited_s += there_s - start_s
            worked_s += time.perf_counter() - there_s
            if is_due(step):
                evaluate(model, loader)
            start_s = time.perf_counter()
    print(f"data {waited_s / (waited_s + worked_s) * 100:.1f}%")


def main() -> None:
    torch.manual_seed(0)
    if sys.argv[1] == "every pass":
        train(Model(), lambda step: step == BATCHES - 1)
    else:
        left = [0]
        train(Model(), lambda step: bool(left) and left.pop() == step)


if __name__ == "__main__":
    main()
