"""A training script that goes wrong, in another way for each change that is made to it.

Run as somebody's own: it knows nothing of pitstop but what it looks up to know its changes by.
"""

import ctypes
import json
import os
import sys
import threading
from pathlib import Path

import torch

HELD_BYTES = 1 << 30
"""What the trial holds that exceeds its memory."""

wanted = json.loads(os.getenv("PITSTOP_PROBE", "{}")).get("interventions", {})
changes = " ".join(wanted.get("changes", ()))
if len(sys.argv) > 1:  # whoever counts trials names a file
    with Path(sys.argv[1]).open("a", encoding="utf-8") as log:
        log.write(f"{changes} {os.getenv('MALLOC_MMAP_MAX_')} {wanted.get('seed')}\n")

torch.manual_seed(0)
samples = torch.utils.data.TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1))
loader = torch.utils.data.DataLoader(samples, batch_size=8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if "threads" in changes:
    held = bytearray(HELD_BYTES)
    held[::4096] = b"1" * len(held[::4096])
    threading.Event().wait()
if os.getenv("MALLOC_MMAP_MAX_"):
    threading.Event().wait()
if os.getenv("THP_MEM_ALLOC_ENABLE"):
    os.write(1, bytes(range(256)) * 40)
    raise ValueError("\x1b[2J garbage \x00")
if "fused" in changes:
    ctypes.string_at(0)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    if "autocast" in changes:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
