"""Train on clips from remote storage, with one loader worker or several.

Slow with ``--workers 1``: the worker fetches one clip after the other and falls behind the model.
Fixed with ``--workers 6``: several requests are under way at a time.
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WARM_UP = 10


class Clips(Dataset[dict[str, Tensor]]):
    """Clips in a bucket; every request takes its time, whatever the processor does."""

    def __init__(self, count: int, request_ms: float) -> None:
        self.count = count
        self.request_s = request_ms / 1e3

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(self.request_s)
        generator = torch.Generator().manual_seed(index)
        clip = torch.rand(256, generator=generator)
        return {"clip": clip, "target": clip.roll(1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--request-ms", type=float, default=1.4)
    parser.add_argument("--micro", type=int, default=8, help="windows cut out of each clip")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Linear(256, 640), nn.GELU(), nn.Linear(640, 640), nn.GELU(), nn.Linear(640, 256)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(
        Clips(args.steps * args.batch_size, args.request_ms),
        batch_size=args.batch_size,
        num_workers=args.workers,
        persistent_workers=True,
    )

    started, loss = time.perf_counter(), torch.zeros(())
    for step, batch in enumerate(loader):
        clips = torch.cat([batch["clip"].roll(shift, dims=1) for shift in range(args.micro)])
        targets = torch.cat([batch["target"].roll(shift, dims=1) for shift in range(args.micro)])
        loss = nn.functional.mse_loss(model(clips), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
