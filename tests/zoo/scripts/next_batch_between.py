"""A small language model that makes its next batch while the device is at work on this one."""

import time

import torch
from torch import nn

STEPS = 120
WARM_UP = 20

torch.manual_seed(0)
tokens = torch.randint(0, 64, (500_000,))


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(tokens) - 33, (400,))
    x = torch.stack([tokens[start : start + 32] for start in starts])
    y = torch.stack([tokens[start + 1 : start + 33] for start in starts])
    return x, y


def main() -> None:
    model = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = get_batch()
    making_s = whole_s = 0.0
    for step in range(STEPS):
        start_s = time.perf_counter()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        before_s = time.perf_counter()
        x, y = get_batch()
        after_s = time.perf_counter()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= WARM_UP:
            making_s += after_s - before_s
            whole_s += time.perf_counter() - start_s
        if step % 10 == 0:
            print(f"step {step}, loss {loss.item():.6f}")
    print(f"stopwatch: data {making_s / whole_s:.1%}")


if __name__ == "__main__":
    main()
