"""Train a deep, narrow network on a GPU: some 900 kernels a step, of a few microseconds each.

Slow by default: the host takes some 20 us to launch what the device does in 5 to 10, so the device
idles for more than half of the step. Fixed with ``--graph``: the same kernels, launched as graphs.
"""

import argparse
import time

import torch
from torch import Tensor, nn

WARM_UP = 20


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + nn.functional.gelu(self.linear(self.norm(inputs)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--graph", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    batch_size, width, depth = (8192, 256, 64) if args.device != "cpu" else (8, 32, 4)

    model = nn.Sequential(*[Block(width) for _ in range(depth)], nn.Linear(width, 10)).to(
        args.device
    )
    inputs = torch.randn(32, batch_size, width, device=args.device)
    labels = torch.randint(0, 10, (32, batch_size), device=args.device)
    if args.graph and args.device != "cpu":
        # In place: the model replays graphs from here on.
        torch.cuda.make_graphed_callables(model, (inputs[0],))
    fused = args.device != "cpu"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[step % 32]), labels[step % 32])
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
