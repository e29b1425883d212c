"""Train wide layers in bf16 on one sample at a time: products of a matrix with a vector.

Tensor cores take tiles of at least 8 by 8; a product with a dimension of one runs beside them, and
the device is busy with reading the weights.
"""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False) for _ in range(6)])
    model = model.to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(8, 1, 8192, device="cuda", dtype=torch.bfloat16)
    loss = torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = model(inputs[step % 8]).square().mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
