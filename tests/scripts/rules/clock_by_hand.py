"""Times its own loop with the probe's clock, and names only part of what it does.

Its last word is the folder of the record. With ``--beside`` the rest lies outside the steps, under
a name that no rule has.
"""

import sys

import torch
from torch import nn

from pitstop_probe import Clock, RecordWriter


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    writer = RecordWriter(f"{sys.argv[-1]}/rank-0.jsonl")
    clock = Clock(writer)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(60):
        clock.begin_step()
        with clock.span("forward"):
            batch = torch.randn(32, 64)
            loss = (model(batch) - batch).square().mean()
        with clock.span("backward"):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if "--beside" in sys.argv:
            with clock.outside_step("drawing pictures"):
                torch.linalg.qr(torch.randn(160, 160))
        else:
            torch.linalg.qr(torch.randn(160, 160))
    clock.close()
    writer.close()


if __name__ == "__main__":
    main()
