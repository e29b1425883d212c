"""Train for many short epochs over a small archive that every loader worker opens for itself.

Slow by default: workers are started anew, and open the archive anew, in each epoch.
Fixed with ``--persistent``: they live as long as the loader.
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WARM_UP = 15


class Archive(Dataset[tuple[Tensor, Tensor]]):
    """A packed file whose index is read when it is first used in a process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pictures = torch.rand(64, 3, 32, 32)
        self.index: list[int] | None = None

    def __len__(self) -> int:
        return self.count

    def open(self) -> list[int]:
        """Read the index; the wait stands for the disk."""
        time.sleep(0.4)
        return list(range(self.count))

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if self.index is None:
            self.index = self.open()
        place = self.index[number] % 64
        return self.pictures[place], torch.tensor(place % 10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--persistent", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Archive(8 * args.batch_size),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.persistent,
    )

    started, loss, step = time.perf_counter(), torch.zeros(()), 0
    for _ in range(args.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if step == WARM_UP:
                started = time.perf_counter()
            step += 1
    seconds = time.perf_counter() - started
    rate = (step - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
