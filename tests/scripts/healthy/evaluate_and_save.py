"""Train with an evaluation and a checkpoint once in a while: under a twentieth of the time."""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 10


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """Accuracy on held-out data."""
    model.eval()
    right, seen = 0, 0
    for inputs, labels in loader:
        right += int((model(inputs).argmax(dim=1) == labels).sum())
        seen += len(labels)
    model.train()
    return right / seen


def made_up(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 256, generator=generator)
    return TensorDataset(inputs, inputs[:, :10].argmax(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Linear(256, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train = DataLoader(made_up(50 * args.batch_size, 1), args.batch_size, shuffle=True)
    held_out = DataLoader(made_up(512, 2), batch_size=256)

    started, loss, step = time.perf_counter(), torch.zeros(()), 0
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            for inputs, labels in train:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                if step == WARM_UP:
                    started = time.perf_counter()
                step += 1
            print(f"epoch {epoch} accuracy {evaluate(model, held_out):.3f}")
            torch.save(model.state_dict(), Path(folder) / f"epoch-{epoch}.pt")
    seconds = time.perf_counter() - started
    rate = (step - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
