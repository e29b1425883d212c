"""Most of the step is its loss: a network of its own, frozen or not there at all.

``frozen``: a frozen network compares output and target. ``loop``: a loop over targets does.
"""

import sys

import torch
from torch import Tensor, nn


class PerceptualLoss(nn.Module):
    """Compares two pictures by what a frozen network makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024))
        self.requires_grad_(requires_grad=False)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Give the distance."""
        return (self.network(output) - self.network(target)).square().mean()


def loop(output: Tensor, target: Tensor) -> Tensor:
    """Give the distance, to the nearest of many targets."""
    with torch.no_grad():
        nearest = target
        for shift in range(40):
            other = target.roll(shift, 0)
            nearest = torch.where((output - other).abs() < (output - nearest).abs(), other, nearest)
    return (output - nearest).abs().mean()


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(256, 256)
    compare = PerceptualLoss() if sys.argv[1] == "frozen" else loop
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(512, 256)
    for _ in range(150):
        output = model(batch)
        loss = compare(output, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
