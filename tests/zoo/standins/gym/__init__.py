"""gym under its old name: gymnasium, ended after ZOO_STEPS optimizer steps where told."""

from gymnasium import *  # noqa: F403
from gymnasium import make, spaces, wrappers
from zoo_stop import obey

__all__ = ["make", "spaces", "wrappers"]

obey()
