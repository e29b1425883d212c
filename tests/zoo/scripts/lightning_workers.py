"""Lightning with loader workers in training and validation, three epochs."""

from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        source = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=source), index % 10


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        if batch_idx % 10 == 0:
            print(f"batch {batch_idx}, loss {loss.item():.6f}")
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


def main() -> None:
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_epochs=3, enable_checkpointing=False, logger=False, enable_progress_bar=False
    )
    trainer.fit(
        Classifier(),
        DataLoader(Pictures(1280), 32, num_workers=2),
        DataLoader(Pictures(128), 32, num_workers=2),
    )


if __name__ == "__main__":
    main()
