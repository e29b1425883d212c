"""Train and save model and optimizer to a network disk every few steps.

Slow with ``--save-every 4``. Fixed with ``--save-every 100``.
"""

import argparse
import io
import time

import torch
from torch import nn

WARM_UP = 10


class NetworkFile(io.BytesIO):
    """A file on a disk behind a network: writing waits for every byte to be sent."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__()
        self.bytes_per_s = bytes_per_s
        self.waiting_s = 0.0

    def write(self, data: bytes, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.waiting_s += memoryview(data).nbytes / self.bytes_per_s
        if self.waiting_s > 1e-3:
            time.sleep(self.waiting_s)
            self.waiting_s = 0.0
        return super().write(data)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, mb_per_s: float) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, NetworkFile(mb_per_s * 1e6))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=640)
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--disk-mb-per-s", type=float, default=50)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Linear(256, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(32, args.batch_size, 256)
    labels = torch.randint(0, 10, (32, args.batch_size))

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[step % 32]), labels[step % 32])
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
        if (step + 1) % args.save_every == 0:
            save(model, optimizer, step, args.disk_mb_per_s)
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
