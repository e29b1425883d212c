"""Train under autocast, with a gradient scaler."""

import argparse

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10)).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = GradScaler(args.device)
    for _ in range(args.steps):
        inputs = torch.randn(args.batch_size, 256, device=args.device)
        optimizer.zero_grad()
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(dim=1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"trained {args.steps} steps")


if __name__ == "__main__":
    main()
