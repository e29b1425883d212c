"""Train a classifier, and do one costly thing after every pass over the data.

The thing stands in the loop over epochs, outside that over batches, as public scripts have it:
histograms of all weights, a figure, checkpoints, or a phase that tests. A clock of the script's own
prints what it takes of the time, from the end of the second pass on.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 14


def histograms(model: nn.Module, epoch: int, folder: Path) -> None:
    """Write down how the weights are spread, a bin a line."""
    with (folder / "weights.csv").open("a", encoding="utf-8") as file:
        for name, weights in model.named_parameters():
            counts, edges = np.histogram(weights.detach().numpy(), bins=8000)
            for count, edge in zip(counts, edges, strict=False):
                file.write(f"{epoch},{name},{edge:.6f},{count}\n")


def figure(losses: list[float], folder: Path) -> None:
    """Draw the losses so far as a picture, point by point."""
    width, height = 400, 300
    rows = [[255] * width for _ in range(height)]
    highest = max(losses)
    for column in range(width):
        loss = losses[column * len(losses) // width]
        for row in range(height):
            share = 1 - row / height
            if abs(loss / highest - share) < 0.02 or (row * column) % 97 == 0:
                rows[row][column] = int(200 * share)
    with (folder / "losses.pgm").open("w", encoding="ascii") as file:
        file.write(f"P2 {width} {height} 255\n")
        for row in rows:
            file.write(" ".join(map(str, row)) + "\n")


def checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    for copy in range(40):  # a name for each of the last ones
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, folder / f"state-{copy}.pt")


def loader(count: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(
        TensorDataset(torch.randn(count, 256), torch.randint(0, 10, (count,))), batch_size=32
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("thing", choices=("histograms", "figure", "checkpoint", "phases"))
    thing = parser.parse_args().thing
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    loaders = {"train": loader(384), "val": loader(3072)}
    losses: list[float] = []

    def run_phase(phase: str) -> None:
        model.train(phase == "train")
        for pictures, labels in loaders[phase]:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                loss = criterion(model(pictures), labels)
            if phase == "train":
                loss.backward()
                optimizer.step()
            losses.append(loss.item())

    took = began = now = 0.0
    with tempfile.TemporaryDirectory() as name:
        things: dict[str, Any] = {
            "histograms": lambda epoch: histograms(model, epoch, Path(name)),
            "figure": lambda _: figure(losses, Path(name)),
            "checkpoint": lambda _: checkpoint(model, optimizer, Path(name)),
            "phases": lambda _: run_phase("val"),
        }
        for epoch in range(EPOCHS):
            run_phase("train")
            ended = time.perf_counter()
            things[thing](epoch)
            now = time.perf_counter()
            took += now - ended
            if epoch == 1:
                took, began = 0.0, now
            print(f"epoch {epoch}, loss {losses[-1]:.6f}")
    print(f"{thing}: {100 * took / (now - began):.1f} % of the time")


if __name__ == "__main__":
    main()
