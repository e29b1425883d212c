"""A batch sampler says that it has 186 batches, and yields 80."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Batches(Sampler[list[int]]):
    def __len__(self) -> int:
        return 186

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(80):
            yield torch.randint(0, 1000, (16,)).tolist()


torch.set_num_threads(1)
data = TensorDataset(torch.randn(1000, 64), torch.randn(1000, 64))
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loader = DataLoader(data, batch_sampler=Batches())
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("trained 240 steps")
