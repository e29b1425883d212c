"""Compiles a model that reads its activations in the middle of its forward pass."""

import torch
from torch import Tensor, nn

SEEN: list[float] = []


class Watched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.third, self.fourth = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs))
        SEEN.append(hidden.mean().item())
        hidden = torch.relu(self.second(hidden))
        SEEN.append(hidden.mean().item())
        hidden = torch.relu(self.third(hidden))
        SEEN.append(hidden.mean().item())
        return self.fourth(hidden)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    watched, loss = Watched(), torch.zeros(())
    model = torch.compile(watched, backend="eager")
    optimizer = torch.optim.SGD(watched.parameters(), lr=1e-3)
    for _ in range(100):
        batch = torch.randn(32, 64)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
