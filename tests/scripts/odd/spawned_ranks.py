"""Train on two ranks that the script starts by itself, without a launcher; the second is slow."""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn


def train(rank: int, meeting: str, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(16, 256)
    for _ in range(steps):
        if rank == 1:
            time.sleep(0.02)
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        spawn(train, args=(meeting, args.steps), nprocs=2)
    print("both ranks are done")


if __name__ == "__main__":
    main()
