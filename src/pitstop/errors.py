"""What can go wrong that a user can fix.

PitstopError
├── ConfigError      a configuration file or override cannot be used
├── RecordError      a run record cannot be read
├── MissingExtra     an optional part of pitstop is not installed
├── MeasureError     a measurement was asked for that this machine cannot give
├── DataError        samples cannot be read, or a place in them cannot be found again
└── CheckpointError  a checkpoint cannot be written or read

A message says what is wrong, where, and what to do. The command line prints it without a
traceback and leaves with exit code 2. What only pitstop itself can break is an ``assert``.
"""


class PitstopError(Exception):
    """Base of every error a user can do something about."""


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


class MissingExtra(PitstopError):  # noqa: N818 - reads as the fact it states
    """An optional part that is not installed.

    Args:
        module: What could not be imported.
        extra: The extra of pitstop that brings it.
        purpose: What it is needed for, as text that fits "... needs <module>".
    """

    def __init__(self, module: str, *, extra: str, purpose: str) -> None:
        install = f"pip install 'pitstop[{extra}]'"
        super().__init__(f"{purpose} needs {module}; install it with `{install}`")
        self.module = module
        self.extra = extra
