"""pitstop makes PyTorch training fast and proves it."""

from importlib.metadata import version

__version__ = version("pitstop")

__all__ = ["__version__"]
