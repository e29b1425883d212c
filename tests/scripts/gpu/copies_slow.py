"""Train on a GPU from batches of 64 MiB in ordinary memory, copied while everything waits.

A pageable copy runs at 6 to 10 GB/s: 6.5 to 10 ms. The products are 2.5 TFLOP a step in TF32, at
some 350 TFLOP/s about 7 ms. So 45 to 60 % of a step is copying.
"""

import argparse
import time

import torch
from torch import nn

WARM_UP = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    batch_size, tokens, width = (256, 64, 1024) if device.type != "cpu" else (4, 4, 32)

    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [torch.randn(batch_size, tokens, width) for _ in range(8)]

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        inputs = batches[step % 8].to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs)
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
