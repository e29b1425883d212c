"""Train a compiled model whose noise level is a tensor that a schedule changes."""

import argparse
import time

import torch
from torch import Tensor, nn

WARM_UP = 15


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(256, 768)]
        for _ in range(6):
            layers += [nn.GELU(), nn.Linear(768, 768)]
        self.layers = nn.Sequential(*layers, nn.GELU(), nn.Linear(768, 256))
        self.level: Tensor
        self.register_buffer("level", torch.zeros(()))

    def forward(self, clean: Tensor, noise: Tensor) -> Tensor:
        return self.layers(clean + noise * (self.level / 100))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--level-every", type=int, default=8)
    parser.add_argument("--backend", default="aot_eager")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = Denoiser()
    compiled = torch.compile(model, backend=args.backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    clean = torch.randn(32, args.batch_size, 256)
    noise = torch.randn(32, args.batch_size, 256)

    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        model.level.fill_(step // args.level_every)
        optimizer.zero_grad()
        output = compiled(clean[step % 32], noise[step % 32])
        loss = nn.functional.mse_loss(output, clean[step % 32])
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) * args.batch_size / seconds
    print(f"loss {loss.item():.6f}, {seconds:.3f} s after warm-up, {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
