"""Train wide linear layers on a GPU in 32-bit arithmetic.

Slow by default: TF32 is off, so 0.82 TFLOP of products run at some 50 TFLOP/s: 16 ms of a step of
about 18 ms, a share of 0.9. Fixed with ``--bf16``: ten to thirteen times as fast, so a bound of
about 5.5x where the ratio of the two rates is known.
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
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    batch_size, width = (8192, 1024) if args.device != "cpu" else (16, 32)

    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        ]
    model = nn.Sequential(*layers).to(args.device)
    fused = args.device != "cpu"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    inputs = torch.randn(8, batch_size, width, device=args.device)

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.bf16):
            output = model(inputs[step % 8])
            loss = nn.functional.mse_loss(output, inputs[step % 8])
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
