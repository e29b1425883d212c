"""Train on several ranks with gradient accumulation.

Slow by default: gradients are exchanged after every micro-batch, though only their sum is used.
Fixed with ``--no-sync``: they are exchanged once an update.
"""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50, help="updates")
    parser.add_argument("--batch-size", type=int, default=16, help="of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=16)
    parser.add_argument("--no-sync", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    inputs = torch.randn(32, args.batch_size, 256)
    labels = torch.randint(0, 10, (32, args.batch_size))

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        for micro in range(args.accumulate):
            at = (step * args.accumulate + micro) % 32
            last = micro == args.accumulate - 1
            quiet = model.no_sync() if args.no_sync and not last else contextlib.nullcontext()
            with quiet:
                loss = nn.functional.cross_entropy(model(inputs[at]), labels[at])
                (loss / args.accumulate).backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    if rank == 0:
        samples = (args.steps - WARM_UP - 1) * args.batch_size * args.accumulate
        rate = samples / seconds
        print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
