"""Train until the process is killed, as by a machine that is out of memory."""

import argparse
import os
import signal
import time

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    started = time.monotonic()
    while True:
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(dim=1)).backward()
        optimizer.step()
        if time.monotonic() - started > args.seconds:
            print("about to be killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
