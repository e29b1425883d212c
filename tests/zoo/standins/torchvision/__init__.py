"""A small stand-in for torchvision: generated pictures, the usual transforms, real networks.

Sizes come from the environment: ZOO_TRAIN and ZOO_TEST pictures, ZOO_STEPS optimizer steps.
"""

from zoo_stop import obey

from . import datasets, models, transforms, utils

__version__ = "0.26.0"
__all__ = ["datasets", "models", "transforms", "utils"]

obey()
