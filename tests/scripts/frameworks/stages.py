"""A restoring network: seven scales with blocks in lists, alignment inside them, a reconstruction.

Scales are recomputed in backward, as those who restore video do to fit their clips.
"""

import sys

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Alignment(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.flow = nn.Linear(width, width)

    def forward(self, x: Tensor) -> dict[str, Tensor | int]:
        return {"aligned": self.flow(x).relu_(), "frames": 2}


class Stage(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.align = Alignment(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.align(x)["aligned"]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Restorer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        for number in range(1, 8):
            setattr(self, f"stage{number}", Stage(width))
        self.reconstruction = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for number in range(1, 8):
            x = getattr(self, f"stage{number}")(x)
        for layer in self.reconstruction:
            x = layer(x)
        return x


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Restorer(64)
    optimizer = torch.optim.AdamW(model.parameters())
    frames = torch.randn(128, 64)
    loss = torch.zeros(())
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss = (model(frames) - frames).square().mean()
        loss.backward()
        optimizer.step()
    print(loss.item())
