"""Reads pictures through a shared cache that drops the oldest, or that may take all memory."""

import argparse

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import pitstop

PICTURES, SIDE = 64, 96


class Pictures(Dataset[Tensor]):
    def __init__(self, cache: pitstop.SharedCache) -> None:
        self.cache = cache

    def __len__(self) -> int:
        return PICTURES

    def __getitem__(self, index: int) -> Tensor:
        found = self.cache.get(index)
        if found is None:
            rows = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(index))
            found = torch.linalg.qr(rows)[0].numpy()
            self.cache.put(index, found)
        return torch.from_numpy(np.array(found[0]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--of-memory", type=float, default=0.0, help="budget, of the host's memory")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    half = PICTURES // 2 * SIDE * SIDE * 4
    cache = pitstop.SharedCache(int(args.of_memory * psutil.virtual_memory().total) or half, "lru")
    model, loss = nn.Linear(SIDE, SIDE), torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Pictures(cache), batch_size=8)
    for _ in range(14):
        for batch in loader:
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    cache.close()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
