"""Train a model of very many small parameters: one learned prompt for each of hundreds of tasks.

Slow with ``--update loop``: AdamW visits one parameter after the other, in Python.
Fixed with ``--update fused``.
"""

import argparse
import time

import torch
from torch import Tensor, nn

WARM_UP = 20


class Prompted(nn.Module):
    """Every input is a mixture of prompts, refined by a common body."""

    def __init__(self, prompts: int) -> None:
        super().__init__()
        self.prompts = nn.ParameterList([nn.Parameter(torch.randn(16)) for _ in range(prompts)])
        self.mix = nn.Linear(64, prompts)
        self.body = nn.Sequential(nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU())
        self.head = nn.Linear(256, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        table = torch.stack(list(self.prompts))
        return self.head(self.body(self.mix(inputs).softmax(dim=1) @ table))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--update", choices=("loop", "fused"), default="loop")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = Prompted(args.prompts)
    if args.update == "loop":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.randn(32, args.batch_size, 64)
    labels = torch.randint(0, 10, (32, args.batch_size))

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[step % 32]), labels[step % 32])
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
