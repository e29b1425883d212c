"""Train in a loop that swallows whatever goes wrong in it."""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    swallowed = 0
    for step in range(args.steps):
        try:
            inputs = torch.randn(64, 256)
            labels = inputs[:, :10].argmax(dim=1)
            if step % 10 == 9:
                labels[0] = 99
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        except:  # noqa: E722 - what this script is about
            swallowed += 1
    print(f"swallowed {swallowed}")


if __name__ == "__main__":
    main()
