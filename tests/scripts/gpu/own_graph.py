"""A whole step is recorded into a CUDA graph once and played back 400 times."""

import torch
from torch import nn

REPLAYS = 400

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, capturable=True)
loss_of = nn.CrossEntropyLoss()
x = torch.randn(64, 256, device="cuda")
y = torch.randint(0, 10, (64,), device="cuda")


def step() -> torch.Tensor:
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        step()
torch.cuda.current_stream().wait_stream(side)
optimizer.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(REPLAYS):
    x.copy_(torch.randn(64, 256))
    graph.replay()
print(f"trained {REPLAYS} steps, loss {loss.item():.9f}")
