"""Train and evaluate on held-out data every few steps.

Slow with ``--eval-every 4``. Fixed with ``--eval-every 100``.
"""

import argparse
import time

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
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--eval-every", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Linear(256, 768),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(768, 768),
        nn.ReLU(),
        nn.Linear(768, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train = DataLoader(made_up(50 * args.batch_size, 1), args.batch_size, shuffle=True)
    held_out = DataLoader(made_up(6144, 2), batch_size=256)

    started, loss, step = time.perf_counter(), torch.zeros(()), 0
    for epoch in range(args.epochs):
        for inputs, labels in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if step == WARM_UP:
                started = time.perf_counter()
            step += 1
            if step % args.eval_every == 0:
                accuracy = evaluate(model, held_out)
                if step % 100 == 0:
                    print(f"epoch {epoch} step {step} accuracy {accuracy:.3f}")
    seconds = time.perf_counter() - started
    rate = (step - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
