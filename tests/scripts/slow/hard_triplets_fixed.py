"""Train an embedding by its hardest triplets, which the loss finds for all samples at once."""

import argparse
import time

import torch
from torch import Tensor, nn

WARM_UP = 20


class HardTripletLoss(nn.Module):
    """For each sample, the farthest of its own class against the nearest of the others."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        positives, negatives = self.hardest(embeddings.detach(), labels)
        far = (embeddings - embeddings[positives]).norm(dim=1)
        near = (embeddings - embeddings[negatives]).norm(dim=1)
        return torch.relu(far - near + self.margin).mean()

    def hardest(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        distances = torch.cdist(embeddings, embeddings)
        same = labels[:, None] == labels[None]
        positives = distances.masked_fill(~same, -1.0).argmax(dim=1)
        negatives = distances.masked_fill(same, float("inf")).argmin(dim=1)
        return positives, negatives


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 32)
    )
    criterion = HardTripletLoss(margin=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(32, args.batch_size, 128)
    labels = torch.randint(0, 16, (32, args.batch_size))

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        embeddings = model(inputs[step % 32])
        loss = criterion(embeddings, labels[step % 32])
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
