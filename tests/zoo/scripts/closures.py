"""L-BFGS on a small regression: one optimizer step calls its closure many times."""

import torch
from torch import nn

STEPS = 50


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 16)
    y = torch.sin(x @ torch.randn(16, 1))
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=12)
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for step in range(STEPS):
        loss = optimizer.step(closure)
        print(f"step {step}, loss {float(loss):.6f}, closures {calls}")


if __name__ == "__main__":
    main()
