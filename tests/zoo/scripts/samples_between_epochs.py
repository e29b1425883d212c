"""Train a small diffusion model, and draw samples from it after every pass.

Samples come from a method of the model that calls one of its parts, as public scripts do it: the
model itself is not called, only set to evaluate and back.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

DRAWN_IN = 120


class Noise(nn.Module):
    """Guesses the noise in a picture."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 3, padding=1)
        )

    def forward(self, pictures: Tensor, time: float) -> Tensor:
        return self.layers(pictures + time)


class Diffusion(nn.Module):
    """A model whose samples are drawn step by step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.noise = Noise(width)

    def forward(self, pictures: Tensor) -> Tensor:
        noise = torch.randn_like(pictures)
        return (noise - self.noise(pictures + noise, 0.5)).square().mean()

    def sample(self, count: int, device: str) -> Tensor:
        drawn = torch.randn(count, 1, 16, 16).to(device)
        for step in range(DRAWN_IN, 0, -1):
            fresh = torch.randn(count, 1, 16, 16).to(device)
            drawn = 0.9 * (drawn - 0.1 * self.noise(drawn, step / DRAWN_IN)) + 0.01 * fresh
        return drawn.cpu()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Diffusion(16).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(640, 1, 16, 16)), batch_size=16, shuffle=True)
    loss = torch.zeros(())
    for epoch in range(4):
        model.train()
        for (pictures,) in loader:
            optimizer.zero_grad()
            loss = model(pictures.to(args.device))
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            drawn = model.sample(32, args.device)
        print(f"epoch {epoch} loss {loss.item():.6f} drawn {drawn.mean().item():.6f}")


if __name__ == "__main__":
    main()
