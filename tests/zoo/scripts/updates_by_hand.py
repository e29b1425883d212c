"""A recurrent language model whose weights are changed in place, without an optimizer."""

import torch
from torch import nn

STEPS = 120


def main() -> None:
    torch.manual_seed(0)
    embed, lstm, head = nn.Embedding(100, 32), nn.LSTM(32, 64), nn.Linear(64, 100)
    weights = [*embed.parameters(), *lstm.parameters(), *head.parameters()]
    words = torch.randint(0, 100, (STEPS * 10 + 1, 16))
    for step in range(STEPS):
        part = words[step * 10 : step * 10 + 11]
        output, _ = lstm(embed(part[:-1]))
        loss = nn.functional.cross_entropy(head(output).flatten(0, 1), part[1:].flatten())
        for weight in weights:
            weight.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.25)
        for weight in weights:
            assert weight.grad is not None
            weight.data.add_(weight.grad, alpha=-1.0)
        if step % 10 == 0:
            print(f"step {step}, loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
