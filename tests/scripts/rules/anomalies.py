"""Trains with the search for NaN left on, as after a night of debugging."""

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
model = torch.nn.Sequential(
    *(layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU()))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, targets = torch.randn(64, 256), torch.randn(64, 256)
for step in range(120):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(images), targets)
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
