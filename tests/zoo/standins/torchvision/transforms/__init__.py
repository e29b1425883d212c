"""Transforms of pictures."""

from . import functional as functional
from . import transforms as transforms
from .transforms import *  # noqa: F403
