"""Trains with three times as many loader workers as there are cores."""

import os

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4 * 90

    def __getitem__(self, index: int) -> Tensor:
        rows = torch.randn(120, 120, generator=torch.Generator().manual_seed(index))
        return torch.linalg.qr(rows)[0][0, :64]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, loss = nn.Linear(64, 64), torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in DataLoader(Noise(), batch_size=4, num_workers=3 * (os.cpu_count() or 1)):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
