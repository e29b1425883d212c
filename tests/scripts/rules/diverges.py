"""Trains at a rate at which the loss ends as no number."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    loss = torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e3)
    for _ in range(100):
        batch = torch.randn(32, 64)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item()}")


if __name__ == "__main__":
    main()
