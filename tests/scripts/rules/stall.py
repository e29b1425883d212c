"""Trains on batches that are dear to make, and hangs once: in the update, or wherever is asked."""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

HANGS_AT = 60


class Noise(Dataset[Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        rows = torch.randn(300, 300, generator=torch.Generator().manual_seed(index))
        return torch.linalg.qr(rows)[0][0, :64]


class Hangs(torch.optim.SGD):
    """An update that hangs on request."""

    for_s = 0.0

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        time.sleep(self.for_s)
        return super().step(closure)


def evaluate(model: nn.Module, hangs_s: float) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.randn(64, 64))
        time.sleep(hangs_s)
        model(torch.randn(64, 64))
    model.train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--at", default="update", choices=("update", "host", "evaluation"))
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, loss = nn.Linear(64, 64), torch.zeros(())
    optimizer = Hangs(model.parameters(), lr=1e-3)
    for step, batch in enumerate(DataLoader(Noise(8 * args.steps), batch_size=8)):
        hangs_s = args.seconds if step == HANGS_AT else 0.0
        optimizer.for_s = hangs_s if args.at == "update" else 0.0
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.at == "host":
            time.sleep(hangs_s)
        if step % 20 == 0:
            evaluate(model, hangs_s if args.at == "evaluation" else 0.0)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
