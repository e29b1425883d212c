"""Train on several ranks; gradients are averaged by hand, one blocking call a parameter."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

WARM_UP = 20


def average_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--layers", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    layers: list[nn.Module] = [nn.Conv2d(3, 24, 3, padding=1)]
    for _ in range(args.layers):
        layers += [nn.Conv2d(24, 24, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    inputs = torch.randn(32, args.batch_size, 3, 16, 16)
    labels = torch.randint(0, 10, (32, args.batch_size))

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[step % 32]), labels[step % 32])
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    if rank == 0:
        rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
        print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
