"""Thin callbacks that attach the probe for the time of a training, for two trainers."""

from importlib import import_module
from pathlib import Path
from typing import Any

from pitstop.errors import PitstopError
from pitstop.measure.attach import Attached, attach


class _Attaching:
    """What both callbacks do."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._attached: Attached | None = None

    def begin(self) -> None:
        self._attached = attach(self._folder)

    def end(self) -> None:
        if self._attached is not None:
            self._attached.close()


def lightning_callback(folder: str | Path) -> Any:
    """Make a callback for Lightning: ``Trainer(callbacks=[pitstop.lightning_callback("runs/a")])``.

    Raises:
        PitstopError: Lightning is not installed.
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

    Raises:
        PitstopError: transformers is not installed.
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
