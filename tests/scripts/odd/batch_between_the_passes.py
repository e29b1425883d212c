"""The next batch is made between forward and backward; a stopwatch of its own."""

import time

import torch
from torch import Tensor, nn

STEPS, WARM_UP = 260, 20

torch.manual_seed(0)
torch.set_num_threads(1)
store = torch.randint(0, 64, (1_000_000,))


def get_batch() -> tuple[Tensor, Tensor]:
    places = torch.randint(len(store) - 65, (768,))
    tokens = torch.stack([store[place : place + 64] for place in places])
    return tokens, torch.stack([store[place + 1 : place + 65] for place in places])


def main() -> None:
    model = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = get_batch()
    making = losing = whole = 0.0
    for step in range(STEPS):
        start = time.perf_counter()
        logits = model(tokens)
        went_forward = time.perf_counter()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        has_loss = time.perf_counter()
        tokens, targets = get_batch()
        has_batch = time.perf_counter()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= WARM_UP:
            losing += has_loss - went_forward
            making += has_batch - has_loss
            whole += time.perf_counter() - start
    print(f"stopwatch: data {making / whole:.4f} loss {losing / whole:.4f}")


if __name__ == "__main__":
    main()
