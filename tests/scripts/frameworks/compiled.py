"""Train a compiled model."""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--backend", default="inductor")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend=args.backend)
    for _ in range(args.steps):
        inputs = torch.randn(args.batch_size, 256)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(compiled(inputs), inputs[:, :10].argmax(dim=1))
        loss.backward()
        optimizer.step()
    print(f"trained {args.steps} steps")


if __name__ == "__main__":
    main()
