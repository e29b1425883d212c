"""Train on several ranks a model of few weights and much arithmetic: little to exchange.

Gradients are exchanged once for every four micro-batches.
"""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WARM_UP = 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--accumulate", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(3, 48, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(48, 48, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(48, 10),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    pictures = torch.rand(120 * args.batch_size * dist.get_world_size(), 3, 24, 24)
    data = TensorDataset(pictures, torch.arange(len(pictures)) % 10)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler)

    started, loss, step = time.perf_counter(), torch.zeros(()), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, (inputs, labels) in enumerate(loader, 1):
            is_last = number % args.accumulate == 0
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = nn.functional.cross_entropy(model(inputs), labels)
                (loss / args.accumulate).backward()
            if not is_last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            if step == WARM_UP:
                started = time.perf_counter()
            step += 1
    seconds = time.perf_counter() - started
    if rank == 0:
        rate = (step - WARM_UP - 1) * args.batch_size * args.accumulate / seconds
        print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
