"""What can go wrong that a user can fix.

PitstopError
├── ConfigError      a configuration file or override cannot be used
├── RecordError      a run record cannot be read
├── MissingPackage   an optional part of pitstop needs a package that is not installed
├── MeasureError     a measurement was asked for that this machine cannot give
├── DataError        samples cannot be read, or a place in them cannot be found again
└── CheckpointError  a checkpoint cannot be written or read

A message says what is wrong, where, and what to do. The command line prints it without a
traceback and leaves with exit code 2. What only pitstop itself can break is an ``assert``.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PitstopError(Exception):
    """Base of every error a user can do something about."""

    ends_at_once = False
    """Whether a command ends without the interpreter's clean-up, which could wait for somebody."""


class ConfigError(PitstopError):
    """A configuration that cannot be used; carries every mistake found, not only the first."""


class RecordError(PitstopError):
    """A run record that cannot be read."""


class MeasureError(PitstopError):
    """A measurement this machine cannot give."""


class DataError(PitstopError):
    """Samples that cannot be read, or a place in them that cannot be found again."""


class CheckpointError(PitstopError):
    """A checkpoint that cannot be written or read; the state of training is as it was."""


@contextmanager
def os_errors_as(kind: type[PitstopError], doing: str) -> Iterator[None]:
    """Say what was being done, and the system's own words, where the system refuses it.

    Raises:
        PitstopError: Of this kind.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{doing}: {error.strerror}") from error


def install_hint(package: str) -> str:
    """Say how to get a package and leave every other as it is.

    An extra of pitstop would let pip choose another torch than the one that somebody has built or
    picked for a GPU; so packages are named, and torch is left to its owner.
    """
    if package == "torch":
        return "install torch 2.11 or later as pytorch.org says"
    return f"install it with `pip install {package}`"


class MissingPackage(PitstopError):  # noqa: N818 - reads as the fact it states
    """An optional part that needs a package which is not installed.

    Args:
        package: What could not be imported, as pip calls it.
        purpose: What it is needed for, as text that fits "... needs <package>".
        choices: All that would do, where there are several; `package` is the one to install.
    """

    def __init__(self, package: str, *, purpose: str, choices: str | None = None) -> None:
        super().__init__(f"{purpose} needs {choices or package}; {install_hint(package)}")
        self.package = package
