"""Train on a GPU from page-locked batches, each copied beside the step before it."""

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

WARM_UP = 20


def copied_ahead(batches: list[Tensor], steps: int, device: torch.device) -> Iterator[Tensor]:
    """Hand out batches on the device while the next one is on its way."""
    if device.type == "cpu":
        for step in range(steps):
            yield batches[step % len(batches)]
        return
    side = torch.cuda.Stream()
    coming: Tensor | None = None
    for step in range(steps + 1):
        ready = coming
        # The copy need not wait for the step under way, only the step for the copy.
        torch.cuda.current_stream().wait_stream(side)
        if step < steps:
            with torch.cuda.stream(side):
                coming = batches[step % len(batches)].to(device, non_blocking=True)
        if ready is not None:
            ready.record_stream(torch.cuda.current_stream())
            yield ready


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    batch_size, tokens, width = (256, 64, 1024) if device.type != "cpu" else (4, 4, 32)

    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [torch.randn(batch_size, tokens, width) for _ in range(8)]
    if device.type != "cpu":
        batches = [batch.pin_memory() for batch in batches]

    started, loss = time.perf_counter(), torch.zeros(())
    for step, inputs in enumerate(copied_ahead(batches, args.steps, device)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            loss.item()
            started = time.perf_counter()
    final = loss.item()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * batch_size / seconds
    print(f"loss {final:.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
