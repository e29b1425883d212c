"""Keeps the graphs of its losses: total += loss, which is never let go. Ends by the clock."""

import time

import torch
from torch import nn

LASTS_S = 24.0
"""Memory is read once a second, and a trend takes fifteen readings after warm-up."""
KEEP_EVERY_S = 0.02
"""About 1 MiB each: the leak is one of time, so that a fast machine does not run out of memory."""


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    total, kept, steps, started = torch.zeros(()), 0, 0, time.monotonic()
    while (lasted_s := time.monotonic() - started) < LASTS_S or steps < 100:
        batch = torch.randn(256, 256)
        loss = (model(batch) - batch).square().mean()
        if kept * KEEP_EVERY_S < lasted_s:
            total, kept = total + loss, kept + 1
        steps += 1
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
    print(f"mean loss {total.item() / kept:.4f}")


if __name__ == "__main__":
    main()
