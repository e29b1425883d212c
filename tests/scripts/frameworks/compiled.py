"""Train a compiled model."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--backend", default="inductor")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend=args.backend)
    inputs = torch.randn(60 * args.batch_size, 256)
    data = TensorDataset(inputs, inputs[:, :10].argmax(dim=1))
    loader = DataLoader(data, args.batch_size, shuffle=True)

    steps = 0
    for _ in range(args.epochs):
        for batch, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(compiled(batch), labels).backward()
            optimizer.step()
            steps += 1
    print(f"trained {steps} steps")


if __name__ == "__main__":
    main()
