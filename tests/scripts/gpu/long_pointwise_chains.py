"""Train a layer on a GPU whose activation is a long chain of element-wise operations.

Slow by default: a tensor of 256 MiB is read and written by some twenty operations forward and by
more backward, about 35 GB a step, so 8 to 10 ms at 4 TB/s beside 5 ms of products in TF32. Fused,
the same work moves a tenth of that: a share of 50 to 60 % would go. Fixed with ``--compile``.
"""

import argparse
import time

import torch
from torch import Tensor, nn

WARM_UP = 20


class Chain(nn.Module):
    """A smooth gate, written out as it stands in the paper."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, inputs: Tensor) -> Tensor:
        scaled = inputs * self.scale + self.shift
        cubic = scaled + 0.044715 * scaled * scaled * scaled
        gate = 0.5 * (1.0 + torch.tanh(0.79788 * cubic))
        soft = torch.sigmoid(scaled) * gate + (1.0 - gate) * torch.tanh(scaled)
        return soft * scaled - 0.5 * torch.sin(soft) * torch.cos(gate)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    batch_size, width = (16384, 4096) if args.device != "cpu" else (16, 32)

    model = nn.Sequential(nn.Linear(width, width), Chain(width)).to(args.device)
    forward = torch.compile(model) if args.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(4, batch_size, width, device=args.device)

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = forward(inputs[step % 4]).square().mean()
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            loss.item()
            started = time.perf_counter()
    final = loss.item()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * batch_size / seconds
    print(f"loss {final:.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
