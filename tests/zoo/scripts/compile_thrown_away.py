"""A model is compiled and the result thrown away: what trains is not compiled."""

import torch
from torch import nn

STEPS = 150


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10))
    torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        pictures, classes = torch.randn(64, 256), torch.randint(0, 10, (64,))
        loss = nn.functional.cross_entropy(model(pictures), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}, loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
