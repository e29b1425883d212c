"""Train a small image classifier from slow storage, with as many loader workers as asked for.

Slow with ``--workers 0``: every picture is read in the training process, while the model waits.
Fixed with ``--workers 4``: pictures are read beside the step.
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

WARM_UP = 10


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """Pictures on a disk that answers after a while; the wait stands for the disk."""

    def __init__(self, count: int, read_ms: float) -> None:
        generator = torch.Generator().manual_seed(1)
        self.raw = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=generator)
        self.count = count
        self.read_s = read_ms / 1e3

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.read_s)
        return self.raw[index % 64].float() / 255, torch.tensor(index % 10)


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--read-ms", type=float, default=0.85)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    pictures = Pictures(args.steps * args.batch_size, args.read_ms)
    loader = DataLoader(pictures, args.batch_size, shuffle=True, num_workers=args.workers)

    started, loss = time.perf_counter(), torch.zeros(())
    for step, (inputs, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
