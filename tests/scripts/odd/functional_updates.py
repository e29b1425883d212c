"""Weights are updated by functions, and no optimizer is there.

argv[1] says how: ``func`` by torch.func, ``rebound`` by autograd.grad and new weights, ``maml`` by
meta-learning with an inner loop, ``none`` not at all.
"""

import sys

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

STEPS = 150

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))
Weights = dict[str, Tensor]


def loss_of(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(functional_call(model, weights, (x,)), y)


def updated(weights: Weights, gradients: Weights, rate: float = 0.01) -> Weights:
    return {name: weight - rate * gradients[name] for name, weight in weights.items()}


def asked(loss: Tensor, weights: Weights, *, again: bool = False) -> Weights:
    gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=again)
    return dict(zip(weights, gradients, strict=True))


def leaves(weights: Weights) -> Weights:
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


def main(kind: str) -> None:
    weights = leaves(dict(model.named_parameters()))
    for _ in range(STEPS):
        x = torch.randn(64, 32)
        y = x.sum(1, keepdim=True)
        if kind == "func":
            weights = updated(weights, grad(loss_of)(weights, x, y))
        elif kind == "maml":
            fast = weights
            for _ in range(3):
                fast = updated(fast, asked(loss_of(fast, x, y), fast, again=True))
            weights = leaves(updated(weights, asked(loss_of(fast, x, y), weights)))
        else:
            gradients = asked(loss_of(weights, x, y), weights)
            if kind == "rebound":
                weights = leaves(updated(weights, gradients))
    print(f"trained {STEPS} steps")


if __name__ == "__main__":
    main(sys.argv[1])
