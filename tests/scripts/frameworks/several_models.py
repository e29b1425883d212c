"""Train an encoder and two heads, three modules under one optimizer, with a frozen teacher."""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    encoder = nn.Sequential(nn.Linear(256, 512), nn.ReLU())
    classes, values = nn.Linear(512, 10), nn.Linear(512, 1)
    teacher = nn.Sequential(nn.Linear(256, 512), nn.Tanh()).eval().requires_grad_(False)
    modules = nn.ModuleList([encoder, classes, values])
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.01)

    for _ in range(args.steps):
        inputs = torch.randn(args.batch_size, 256)
        with torch.no_grad():
            wanted = teacher(inputs)
        hidden = encoder(inputs)
        loss = nn.functional.cross_entropy(classes(hidden), inputs[:, :10].argmax(dim=1))
        loss = loss + nn.functional.mse_loss(values(hidden)[:, 0], inputs[:, 0])
        loss = loss + nn.functional.mse_loss(hidden, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"trained {args.steps} steps")


if __name__ == "__main__":
    main()
