"""Batches are made by modules in the training process, as transforms are; a stopwatch of its own.

argv[1] says how: by a dataset's items, by its collating, by a stream, by a generator or by a
function that the loop calls.
"""

import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

BATCH, STEPS, WARM_UP = 32, 130, 20


class Normalize(nn.Module):
    """A transform without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(30):
            x = (x - 0.13) / 0.31 * 0.31 + 0.13
        return x


class Blur(nn.Module):
    """A transform with parameters that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 1, 3, padding=1)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.convolution(x[None])[0]
        return x


TRANSFORM = nn.Sequential(Normalize(), Blur())


def sample(transform: bool = True) -> tuple[Tensor, int]:
    picture = torch.rand(1, 28, 28)
    return (TRANSFORM(picture) if transform else picture), 3


class Items(Dataset[tuple[Tensor, int]]):
    def __init__(self, transform: bool) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return sample(self.transform)


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            yield sample()


def collate(samples: list[tuple[Tensor, int]]) -> list[Tensor]:
    return default_collate([(TRANSFORM(picture), label) for picture, label in samples])


def get_batch() -> list[Tensor]:
    return default_collate([sample() for _ in range(BATCH)])


def generator() -> Iterator[list[Tensor]]:
    while True:
        yield get_batch()


model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(pictures: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(pictures), labels).backward()
    optimizer.step()


def main(kind: str) -> None:
    torch.set_num_threads(1)
    batches: Iterator[list[Tensor]]
    if kind == "items":
        batches = iter(DataLoader(Items(transform=True), BATCH))
    elif kind == "collate":
        batches = iter(DataLoader(Items(transform=False), BATCH, collate_fn=collate))
    elif kind == "stream":
        batches = iter(DataLoader(Stream(), BATCH))
    else:
        batches = generator()
    waited = whole = 0.0
    for step in range(STEPS):
        start = time.perf_counter()
        pictures, labels = get_batch() if kind == "function" else next(batches)
        arrived = time.perf_counter()
        train(pictures, labels)
        if step >= WARM_UP:
            waited += arrived - start
            whole += time.perf_counter() - start
    print(f"stopwatch: data {waited / whole:.4f}")


if __name__ == "__main__":
    main(sys.argv[1])
