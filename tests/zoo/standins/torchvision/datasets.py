"""Datasets of random pictures, as many as ZOO_TRAIN and ZOO_TEST say."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

Transform = Callable[[Any], Any] | None


def _count(train: bool) -> int:
    name, usual = ("ZOO_TRAIN", 2048) if train else ("ZOO_TEST", 256)
    return int(os.environ.get(name, usual))


class VisionDataset(Dataset[Any]):
    """Pictures of one size, each with a class."""

    size = (32, 32, 3)
    classes_count = 10

    def __init__(
        self,
        root: str = "",
        train: bool = True,
        transform: Transform = None,
        target_transform: Transform = None,
        download: bool = False,
        split: str = "train",
    ) -> None:
        self.root, self.train = root, train and split != "test"
        self.transform, self.target_transform = transform, target_transform
        count = _count(self.train)
        rng = np.random.default_rng(0 if self.train else 1)
        self.data: Any = rng.integers(0, 255, (count, *self.size), dtype=np.uint8)
        self.targets: Any = rng.integers(0, self.classes_count, count).tolist()
        self.classes = [str(number) for number in range(self.classes_count)]

    def __len__(self) -> int:
        return len(self.data)

    def _picture(self, index: int) -> Image.Image:
        return Image.fromarray(self.data[index])

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        picture: Any = self._picture(index)
        target: Any = int(self.targets[index])
        if self.transform is not None:
            picture = self.transform(picture)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return picture, target


class CIFAR10(VisionDataset):
    """Pictures of 32 by 32, ten classes."""


class CIFAR100(VisionDataset):
    """Pictures of 32 by 32, a hundred classes."""

    classes_count = 100


class STL10(VisionDataset):
    """Pictures of 96 by 96."""

    size = (96, 96, 3)


class MNIST(VisionDataset):
    """Grey pictures of 28 by 28, kept as tensors as the original keeps them."""

    size = (28, 28)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data = torch.from_numpy(self.data)
        self.targets = torch.tensor(self.targets)

    def _picture(self, index: int) -> Image.Image:
        return Image.fromarray(self.data[index].numpy())


class FashionMNIST(MNIST):
    """As MNIST."""


class ImageFolder(Dataset[Any]):
    """Pictures in one folder a class, read from the disk."""

    def __init__(self, root: str, transform: Transform = None) -> None:
        folders = sorted(path for path in Path(root).iterdir() if path.is_dir())
        self.classes = [path.name for path in folders]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples = [
            (str(file), number)
            for number, folder in enumerate(folders)
            for file in sorted(folder.iterdir())
        ]
        self.imgs, self.root, self.transform = self.samples, root, transform
        self.targets = [number for _, number in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def loader(self, path: str) -> Image.Image:
        """Read one picture."""
        with Image.open(path) as picture:
            return picture.convert("RGB")

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, target = self.samples[index]
        picture: Any = self.loader(path)
        return (picture if self.transform is None else self.transform(picture)), target
