"""Train with accumulation, clipping, a schedule, and a line of log now and then."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60, help="updates")
    parser.add_argument("--batch-size", type=int, default=64, help="of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--log-every", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Linear(256, 1408), nn.GELU(), nn.Linear(1408, 1408), nn.GELU(), nn.Linear(1408, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    inputs = torch.randn(args.steps * args.accumulate * args.batch_size // 4, 256)
    data = TensorDataset(inputs, inputs[:, :10].argmax(dim=1))
    loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)

    started, loss, micro, step = time.perf_counter(), torch.zeros(()), 0, 0
    while step < args.steps:
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch), labels)
            (loss / args.accumulate).backward()
            micro += 1
            if micro % args.accumulate:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % args.log_every == 0:
                print(f"step {step} loss {loss.item():.4f} lr {schedule.get_last_lr()[0]:.2e}")
            if step == WARM_UP:
                started = time.perf_counter()
            step += 1
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size * args.accumulate / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
