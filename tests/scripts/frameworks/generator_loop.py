"""Train from a generator, without any loader."""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def batches(steps: int, batch_size: int) -> Iterator[dict[str, Tensor]]:
    for _ in range(steps):
        inputs = torch.randn(batch_size, 256)
        yield {"inputs": inputs, "labels": inputs[:, :10].argmax(dim=1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for batch in batches(args.steps, args.batch_size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"]).backward()
        optimizer.step()
    print(f"trained {args.steps} steps")


if __name__ == "__main__":
    main()
