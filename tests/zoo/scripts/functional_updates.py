"""Meta-learning with functional updates: weights are rebound, no optimizer steps."""

import torch
from torch import nn
from torch.func import functional_call, grad

STEPS = 80


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)
    )
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss_of(held: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(functional_call(model, held, (x,)), y)

    def adapted_loss(
        held: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        slopes = grad(loss_of)(held, x, y)
        inner = {name: weight - 0.01 * slopes[name] for name, weight in held.items()}
        return loss_of(inner, x, y)

    for step in range(STEPS):
        phase = torch.rand(1) * 3
        x = torch.rand(64, 1) * 10 - 5
        y = torch.sin(x + phase)
        slopes = grad(adapted_loss)(weights, x, y)
        weights = {name: weight - 0.01 * slopes[name] for name, weight in weights.items()}
        if step % 10 == 0:
            print(f"step {step}, loss {loss_of(weights, x, y).item():.6f}")


if __name__ == "__main__":
    main()
