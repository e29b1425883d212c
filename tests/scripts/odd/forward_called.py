"""No model is called: its ``forward`` is, or it is a function; a stopwatch of its own.

python forward_called.py (layer | model | function)
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

STEPS, WARM_UP, WIDTH = 150, 20, 256

torch.manual_seed(0)
torch.set_num_threads(1)


class Layer(nn.Linear):
    """Computes before its only module, and in the arguments of it."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.relu = nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch gave it
        direction = input / (input.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(torch.mm(direction, self.weight.T) + self.bias.unsqueeze(0))


class Model(nn.Module):
    """Modules with parameters and without, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.relu = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.one(x / x.norm(2, 1, keepdim=True)))
        return self.two(hidden.sort(1).values)


def network(kind: str) -> tuple[list[nn.Parameter], Callable[[Tensor], Tensor]]:
    """Its parameters, and what computes its output."""
    if kind == "function":
        weights = [nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH) for _ in range(2)]
        return weights, lambda x: gelu(x @ weights[0]).sort(1).values @ weights[1]
    model = Layer() if kind == "layer" else Model()
    return list(model.parameters()), model.forward


def main(kind: str) -> None:
    parameters, compute = network(kind)
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    criterion = nn.CrossEntropyLoss()
    inputs, targets = torch.randn(512, WIDTH), torch.randint(WIDTH, (512,))
    forward = whole = 0.0
    for step in range(STEPS):
        start = time.perf_counter()
        output = compute(inputs)
        went_forward = time.perf_counter()
        loss = criterion(output, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= WARM_UP:
            forward += went_forward - start
            whole += time.perf_counter() - start
    print(f"stopwatch: forward {forward / whole:.4f}")


if __name__ == "__main__":
    main(sys.argv[1])
