"""Train from a Python generator whose records threads read ahead of the steps."""

import argparse
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

WARM_UP = 10


def read_batch(number: int, batch_size: int, read_ms: float) -> tuple[Tensor, Tensor]:
    """Read the records of a batch from storage; the wait stands for it."""
    generator = torch.Generator().manual_seed(number)
    rows = []
    for _ in range(batch_size // 32):
        time.sleep(read_ms / 1e3)
        rows.append(torch.randn(32, 256, generator=generator))
    inputs = torch.cat(rows)
    return inputs, (inputs.sum(dim=1) > 0).long()


def read_batches(steps: int, batch_size: int, read_ms: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Hand out batches in order while eight more are being read."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        reading = deque(pool.submit(read_batch, n, batch_size, read_ms) for n in range(8))
        for number in range(8, steps + 8):
            ready = reading.popleft()
            if number < steps:
                reading.append(pool.submit(read_batch, number, batch_size, read_ms))
            yield ready.result()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=1280)
    parser.add_argument("--read-ms", type=float, default=1.6)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Linear(256, 704), nn.ReLU(), nn.Linear(704, 704), nn.ReLU(), nn.Linear(704, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    started, loss = time.perf_counter(), torch.zeros(())
    for step, (inputs, labels) in enumerate(
        read_batches(args.steps, args.batch_size, args.read_ms)
    ):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
