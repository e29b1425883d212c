"""Thin callbacks that attach the probe for the time of a training, for two trainers."""

from importlib import import_module
from pathlib import Path
from typing import Any

from pitstop.measure.script.attach import Attached, attach
from pitstop_probe.stderr import say


class _Attaching:
    """What both callbacks do.

    A training that cannot be measured goes on unmeasured: `attach` raises nothing. One that begins
    later has a folder of its own below the first's.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._begun = 0
        self._attached: Attached | None = None

    def begin(self) -> None:
        self._begun += 1
        if self._begun == 1:
            self._attached = attach(self._folder)
            self._folder = self._attached.folder
        else:
            self._attached = attach(self._folder / str(self._begun))

    def end(self) -> None:
        if self._attached is not None:
            self._attached.close()


def lightning_callback(folder: str | Path) -> Any:
    """Make a callback for Lightning: ``Trainer(callbacks=[pitstop.lightning_callback("runs/a")])``.

    The record of its second fit goes into ``runs/a/2``, and so on. Where Lightning is not installed
    it does nothing, and says so.
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

    The record of its second training goes into the folder ``2`` below, and so on. Where
    transformers is not installed it does nothing, and says so.
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
        except ImportError:
            continue
    say(f"{modules[0]} cannot be imported: its trainings are not measured")
    return object
