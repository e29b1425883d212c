"""Thin callbacks that attach the probe for the time of a training, for two trainers."""

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from pitstop.errors import PitstopError
from pitstop.measure.attach import Attached, attach, free_folder


class _Attaching:
    """What both callbacks do.

    A folder that takes no record is refused here, and only here: from then on a training is not
    measured, rather than ended. One that begins later has a folder of its own below the first.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = free_folder(folder)
        self._begun = 0
        self._attached: Attached | None = None

    def begin(self) -> None:
        self._begun += 1
        folder = self._folder if self._begun == 1 else self._folder / str(self._begun)
        try:
            self._attached = attach(folder)
        except PitstopError as error:
            warnings.warn(f"pitstop does not measure this training: {error}", stacklevel=2)

    def end(self) -> None:
        if self._attached is not None:
            self._attached.close()


def lightning_callback(folder: str | Path) -> Any:
    """Make a callback for Lightning: ``Trainer(callbacks=[pitstop.lightning_callback("runs/a")])``.

    The record of its second fit goes into ``runs/a/2``, and so on.

    Raises:
        PitstopError: Lightning is not installed, or the folder takes no record.
    """
    base: Any = _first(("lightning.pytorch", "pytorch_lightning"), "Callback")

    class LightningProbe(_Attaching, base):
        def on_fit_start(self, *_: Any) -> None:
            self.begin()

        def on_fit_end(self, *_: Any) -> None:
            self.end()

    return LightningProbe(folder)


def trainer_callback(folder: str | Path) -> Any:
    """Make a callback for the Hugging Face Trainer: ``Trainer(callbacks=[...])``.

    The record of its second training goes into the folder ``2`` below, and so on.

    Raises:
        PitstopError: transformers is not installed, or the folder takes no record.
    """
    base: Any = _first(("transformers",), "TrainerCallback")

    class TrainerProbe(_Attaching, base):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.begin()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.end()

    return TrainerProbe(folder)


def _first(modules: tuple[str, ...], name: str) -> Any:
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except ModuleNotFoundError:
            continue
    raise PitstopError(f"{modules[0]} is not installed; there is nothing to call back")
