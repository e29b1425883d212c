"""Train a head on a frozen network on a GPU, and follow the activations of every layer.

Slow by default: one ``.item()`` a layer, in which the host waits until the device has caught up;
then the device waits until the host has launched the next layer. Fixed with ``--read-later``: the
same means stay on the device and are read once in fifty steps.
"""

import argparse
import time

import torch
from torch import Tensor, nn

WARM_UP = 20


class Watched(nn.Module):
    """A frozen network that keeps the mean activation of every layer, and a head that trains."""

    def __init__(self, width: int, depth: int, *, later: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.layers.requires_grad_(requires_grad=False)
        self.head = nn.Linear(width, 10)
        self.later = later
        self.means: list[float | Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.means = []
        with torch.no_grad():
            for layer in self.layers:
                inputs = torch.relu(layer(inputs))
                mean = inputs.abs().mean()
                self.means.append(mean if self.later else mean.item())
        return self.head(inputs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--read-later", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    batch_size, width, depth = (8192, 1024, 60) if args.device != "cpu" else (8, 32, 4)

    model = Watched(width, depth, later=args.read_later).to(args.device)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=1e-3)
    inputs = torch.randn(8, batch_size, width, device=args.device)
    labels = torch.randint(0, 10, (8, batch_size), device=args.device)

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[step % 8]), labels[step % 8])
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            largest = max(float(mean) for mean in model.means)
            print(f"step {step} largest mean {largest:.4f}")
        if step == WARM_UP:
            loss.item()
            started = time.perf_counter()
    final = loss.item()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * batch_size / seconds
    print(f"loss {final:.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
