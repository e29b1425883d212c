"""pitstop makes PyTorch training fast and proves it.

What the package offers is imported when it is first asked for: `import pitstop` needs neither torch
nor numpy.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pitstop.data.cache import SharedCache
    from pitstop.data.pk_sampler import PKSampler
    from pitstop.data.prefetch import DevicePrefetcher
    from pitstop.measure.attach import attach, span
    from pitstop.measure.callbacks import lightning_callback, trainer_callback
    from pitstop.train.optim import build_optimizer

__version__ = version("pitstop")

__all__ = [
    "DevicePrefetcher",
    "PKSampler",
    "SharedCache",
    "__version__",
    "attach",
    "build_optimizer",
    "lightning_callback",
    "span",
    "trainer_callback",
]

_HOMES = {
    "DevicePrefetcher": "pitstop.data.prefetch",
    "PKSampler": "pitstop.data.pk_sampler",
    "SharedCache": "pitstop.data.cache",
    "attach": "pitstop.measure.attach",
    "build_optimizer": "pitstop.train.optim",
    "lightning_callback": "pitstop.measure.callbacks",
    "span": "pitstop.measure.attach",
    "trainer_callback": "pitstop.measure.callbacks",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *_HOMES))
