"""Train a small network to tell four textures apart: `python train.py FOLDER [STEPS]`."""

import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 32
CLASSES = 4


@lru_cache(maxsize=10_000)
def read_picture(file):
    picture = Image.open(file).convert("RGB").resize((SIDE, SIDE))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255


def add_noise(picture):
    """Turn one pixel in ten black or white."""
    noise = torch.rand(SIDE, SIDE)
    return torch.where(noise < 0.05, 0.0, torch.where(noise > 0.95, 1.0, picture))


class Textures(Dataset):
    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*.jpg"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        return add_noise(read_picture(file)), int(file.stem.split("-")[0])


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, padding=2),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, CLASSES),
    )


def main(folder, steps=60):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Textures(folder), batch_size=8, shuffle=True)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    done, total = 0, 0.0
    while done < steps:
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            done += 1
            if done % 10 == 0:
                print(f"step {done} loss {total / 10:.6f}")
                total = 0.0
            if done == steps:
                break


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
