"""Train while writing a detailed log: histograms of every weight, as JSON and on the terminal.

Slow with ``--log-every 1``. Fixed with ``--log-every 50``.
"""

import argparse
import json
import tempfile
import time
from typing import TextIO

import torch
from torch import Tensor, nn

WARM_UP = 10


def write_log(file: TextIO, step: int, loss: Tensor, model: nn.Module) -> None:
    """Write one record: the loss and the histogram of every weight."""
    record: dict[str, object] = {"step": step, "loss": loss.item()}
    for name, weight in model.named_parameters():
        values = weight.detach().flatten()[:4096]
        record[name] = torch.histc(values, bins=1600).tolist()
    json.dump(record, file, indent=1)
    file.write("\n")
    file.flush()
    print(f"step {step} loss {loss.item():.5f} weights {len(record) - 2}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--log-every", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    layers: list[nn.Module] = [nn.Linear(256, 384), nn.ReLU()]
    for _ in range(5):
        layers += [nn.Linear(384, 384), nn.LayerNorm(384), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(384, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(32, args.batch_size, 256)
    labels = torch.randint(0, 10, (32, args.batch_size))

    started, loss = time.perf_counter(), torch.zeros(())
    with tempfile.TemporaryFile("w+") as file:
        for step in range(args.steps):
            optimizer.zero_grad()
            output = model(inputs[step % 32])
            loss = nn.functional.cross_entropy(output, labels[step % 32])
            loss.backward()
            optimizer.step()
            if step % args.log_every == 0:
                write_log(file, step, loss, model)
            if step == WARM_UP:
                started = time.perf_counter()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
