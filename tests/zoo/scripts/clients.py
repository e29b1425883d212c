"""Federated training: each client has a copy of the model, an optimizer and a loader of its own."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROUNDS, CLIENTS, PASSES = 2, 5, 2
"""With ten batches a pass, 200 steps."""


def train(
    model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]
) -> dict[str, torch.Tensor]:
    """Train a client's copy."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for _ in range(PASSES):
        for pictures, labels in loader:
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item():.6f}")
    return model.state_dict()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    for _ in range(ROUNDS):
        trained = []
        for _ in range(CLIENTS):
            own = TensorDataset(torch.randn(100, 28, 28), torch.randint(10, (100,)))
            trained.append(train(copy.deepcopy(model), DataLoader(own, 10, shuffle=True)))
        mean = {name: sum(one[name] for one in trained) / CLIENTS for name in trained[0]}
        model.load_state_dict(mean)


if __name__ == "__main__":
    main()
