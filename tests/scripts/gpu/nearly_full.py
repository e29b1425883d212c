"""Train with most of the GPU's memory taken and batches of ever other sizes.

The allocator's cached blocks fit no new batch, so it gives them back and asks the driver again.
"""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    free_bytes, _ = torch.cuda.mem_get_info()
    held = torch.empty(free_bytes - (4 << 30), dtype=torch.uint8, device="cuda")
    loss = torch.zeros(())
    for step in range(args.steps):
        rows = 20_000 + 1_700 * (step * 7 % 13)
        batch = torch.randn(rows, 1024, device="cuda")
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}, {held.numel()} bytes held")


if __name__ == "__main__":
    main()
