"""torch.compile is called and its result thrown away: the model that trains is not compiled."""

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10))
torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(150):
    pictures, labels = torch.randn(64, 256), torch.randint(0, 10, (64,))
    loss = nn.functional.cross_entropy(model(pictures), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained 150 steps")
