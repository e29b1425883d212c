"""Files that come from elsewhere, opened without trusting them, and files written whole."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read; a pipe, a device or a socket is refused, and not waited for.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise _refusal(path)
    # It may be another one by now: opening a pipe must not wait for its writer.
    descriptor = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refusal(path)
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, *, most_bytes: int) -> bytes:
    """Read a whole regular file of a size that its kind can have.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger.
    """
    with open_regular(path) as file:
        # Files of the system that have no end, or wait for one, say to be empty.
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise OSError(errno.EFBIG, f"it has more than {most_bytes >> 20} MiB", str(path))
        return file.read(size_bytes)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a place beside a file to write to, which becomes the file when everything is written.

    Otherwise nothing is left there, and a file that was there before stays as it was.

    Raises:
        OSError: It cannot be put in its place.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _refusal(path: Path) -> OSError:
    if path.is_dir():
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return OSError(errno.EINVAL, "it is not a regular file", str(path))
