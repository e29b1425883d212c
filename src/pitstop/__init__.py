"""pitstop makes PyTorch training fast and proves it.

What the package offers is imported when it is first asked for: `import pitstop` needs neither torch
nor numpy.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pitstop.attached import attach
    from pitstop.data.cache.cached_reader import cached
    from pitstop.data.cache.shared import SharedCache
    from pitstop.data.loader.prefetch import DevicePrefetcher
    from pitstop.data.sampling.pk_sampler import PKSampler
    from pitstop.measure.script.attach import span
    from pitstop.measure.script.callbacks import lightning_callback, trainer_callback
    from pitstop.train.optim.build import build_optimizer
    from pitstop.workloads.deblur.model.accelerate import accelerate

__version__ = version("pitstop")

__all__ = [
    "DevicePrefetcher",
    "PKSampler",
    "SharedCache",
    "__version__",
    "accelerate",
    "attach",
    "build_optimizer",
    "cached",
    "lightning_callback",
    "span",
    "trainer_callback",
]

_HOMES = {
    "DevicePrefetcher": "pitstop.data.loader.prefetch",
    "PKSampler": "pitstop.data.sampling.pk_sampler",
    "SharedCache": "pitstop.data.cache.shared",
    "accelerate": "pitstop.workloads.deblur.model.accelerate",
    "attach": "pitstop.attached",
    "build_optimizer": "pitstop.train.optim.build",
    "cached": "pitstop.data.cache.cached_reader",
    "lightning_callback": "pitstop.measure.script.callbacks",
    "span": "pitstop.measure.script.attach",
    "trainer_callback": "pitstop.measure.script.callbacks",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Give what the package offers; what it is made of stays out of the way of completion."""
    return sorted(__all__)
