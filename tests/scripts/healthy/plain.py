"""Train a small image classifier: workers that keep up, a model that takes the time."""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WARM_UP = 10


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """Pictures in memory, turned to floats when asked for."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.raw = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=generator)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.raw[index % 64].float() / 255, torch.tensor(index % 10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Pictures(50 * args.batch_size),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )

    started, loss, step = time.perf_counter(), torch.zeros(()), 0
    for epoch in range(args.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if step == WARM_UP:
                started = time.perf_counter()
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f}")
    seconds = time.perf_counter() - started
    rate = (step - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
