"""Train a ranker and follow its area under the curve, counted by tensor operations."""

import argparse
import time

import torch
from torch import Tensor, nn

WARM_UP = 10


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """Share of pairs, one positive and one negative, that stand in the right order."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    above = negative.sort().values
    lower = torch.searchsorted(above, positive)
    upper = torch.searchsorted(above, positive, right=True)
    right = lower.sum() + 0.5 * (upper - lower).sum()
    return right.item() / max(1, len(positive) * len(negative))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=4096)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(nn.Linear(128, 224), nn.ReLU(), nn.Linear(224, 224), nn.ReLU())
    head = nn.Linear(224, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    criterion = nn.BCEWithLogitsLoss()
    inputs = torch.randn(32, args.batch_size, 128)
    labels = (inputs[:, :, :4].sum(dim=2) > 0).long()

    started, loss, areas = time.perf_counter(), torch.zeros(()), 0.0
    for step in range(args.steps):
        x, y = inputs[step % 32], labels[step % 32]
        optimizer.zero_grad()
        scores = head(model(x))[:, 0]
        loss = criterion(scores, y.float())
        loss.backward()
        optimizer.step()
        areas += area_under_curve(scores.detach()[:1024], y[:1024])
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} area {areas / (step + 1):.4f}")
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
