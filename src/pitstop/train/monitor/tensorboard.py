"""Values and metrics as TensorBoard files, where the configuration asks for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pitstop.errors import MissingPackage
from pitstop.train.observers import Observer, Status


class TensorBoard(Observer):
    """Writes event files beside the record.

    Raises:
        MissingPackage: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ModuleNotFoundError as error:
            raise MissingPackage("tensorboard", purpose="log.tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """Write each value under its name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write each metric under its name."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"eval/{name}", value, step)

    def ended(self, step: int, status: Status, reason: str) -> None:
        """Close the files."""
        self._writer.close()
