"""Pictures of digits; the transform of the dataset is a module, as torchvision's are."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCHES = 110
WARM_UP = 20


class Jitter(nn.Module):
    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            picture = (picture - 0.13) / 0.31 * 0.31 + 0.13
        return picture


class Digits(Dataset[tuple[torch.Tensor, int]]):
    transform = Jitter()

    def __len__(self) -> int:
        return BATCHES * 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(torch.rand(1, 28, 28)), index % 10


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    waited_s = computed_s = 0.0
    before_s = time.perf_counter()
    for number, (pictures, classes) in enumerate(DataLoader(Digits(), batch_size=32)):
        fetched_s = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), classes)
        loss.backward()
        optimizer.step()
        after_s = time.perf_counter()
        if number >= WARM_UP:
            waited_s += fetched_s - before_s
            computed_s += after_s - fetched_s
        before_s = after_s
        if number % 10 == 0:
            print(f"batch {number}, loss {loss.item():.6f}")
    print(f"stopwatch: data {waited_s / (waited_s + computed_s):.1%}")


if __name__ == "__main__":
    main()
