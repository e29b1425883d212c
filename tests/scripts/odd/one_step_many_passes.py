"""An optimizer that goes forward and back as often as it likes: 60 of its steps are 60 steps."""

import torch
from torch import Tensor, nn

STEPS = 60

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(256, 32)
y = torch.sin(x @ torch.randn(32, 1))
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)
losses: list[float] = []


def closure() -> Tensor:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    losses.append(loss.item())
    return loss


for _ in range(STEPS):
    optimizer.step(closure)
print(f"trained {STEPS} steps with {len(losses)} passes")
