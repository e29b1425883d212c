"""A classifier on pictures from the disk, with loader workers, the way most people start."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.files = sorted(Path(folder).glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files) * 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index % len(self.files)]) as picture:
            pixels = np.asarray(picture.convert("RGB").resize((96, 96)))
        return torch.tensor(pixels / 255.0, dtype=torch.float32).permute(2, 0, 1), index % 10


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 7, 4, 3), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Pictures(sys.argv[1]), batch_size=16, shuffle=True, num_workers=2)
    for epoch in range(3):
        for number, (pictures, classes) in enumerate(loader):
            pictures, classes = pictures.to(device), classes.to(device)  # noqa: PLW2901
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), classes)
            loss.backward()
            optimizer.step()
            if number % 10 == 0:
                print(f"epoch {epoch}, batch {number}, loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
