"""A sampler that promises more batches than it gives."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.sampler import Sampler

PROMISED = 90
GIVEN = 40


class Groups(Sampler[list[int]]):
    def __len__(self) -> int:
        return PROMISED

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(GIVEN):
            yield torch.randint(0, 512, (16,)).tolist()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(512, 64), torch.randint(0, 8, (512,)))
    loss = torch.zeros(())
    for epoch in range(3):
        for features, classes in DataLoader(data, batch_sampler=Groups()):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), classes)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}, loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
