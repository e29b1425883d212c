"""Train on several ranks of which one has its share of the data on slow storage.

Slow with ``--workers 0``: all ranks wait for that rank in every exchange of gradients.
Fixed with ``--workers 1``: its storage is read ahead.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WARM_UP = 10


class Shard(Dataset[tuple[Tensor, Tensor]]):
    """This rank's share of the data; the wait stands for its storage."""

    def __init__(self, count: int, rank: int, read_ms: float) -> None:
        self.count = count
        self.pictures = torch.rand(64, 3, 26, 26, generator=torch.Generator().manual_seed(rank))
        self.read_s = read_ms / 1e3

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.read_s:
            time.sleep(self.read_s)
        return self.pictures[index % 64], torch.tensor(index % 10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--read-ms", type=float, default=0.9)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(24, 10),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    shard = Shard(
        args.steps * args.batch_size, rank, args.read_ms if rank == args.slow_rank else 0.0
    )
    loader = DataLoader(shard, args.batch_size, num_workers=args.workers)

    started, loss = time.perf_counter(), torch.zeros(())
    for step, (inputs, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    if rank == 0:
        rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
        print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
