"""A process that has imported torch once and forks a child for each program it is asked to run.

``python server.py SOCKET MODULE ...``: the descriptor of a connected socket, and what to import
first. A request is JSON with four descriptors beside it: where the status goes, then stdin, stdout
and stderr. The status is the child's process id and, once it ended, its wait status, eight bytes
each. The server ends when the other side closes the socket.

A child must not be told from a started interpreter by its program: `_become` sets what the
interpreter would have set, `_run` ends as it would have ended.
"""

import ctypes
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import types
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

STATUS = struct.Struct("=q")
_MOST_BYTES = 1 << 20
"""Of a request; the kernel refuses to send one that is as long."""
_STREAMS = 3


def main(words: list[str]) -> None:
    """Serve until the other side has gone; comes back from here only in a child."""
    requests = socket.socket(fileno=int(words[0]))
    gc.disable()
    for name in words[1:]:
        importlib.import_module(name)
    # A collection, and every program ends with two, would visit all of it and so copy its pages:
    # a second of work for each child.
    gc.collect()
    gc.freeze()
    gc.enable()
    # A thread would not be there in a child, and what it held would stay locked for ever.
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        sys.exit(f"importing {', '.join(words[1:])} started {threads - 1} threads")
    asked = _serve(requests)
    if asked is not None:
        _leave_once_python_has()
        _run(asked)


def _leave_once_python_has() -> None:
    """Let the process end after the interpreter has, and leave out the clean-up of libraries.

    torch clears its tables of operators there, which copies their pages: 0.2 s for each child.
    """
    c = ctypes.CDLL(None)
    c.on_exit(c._exit, None)  # called with the exit status


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; gives it in the child, None once there will be no more."""
    with selectors.DefaultSelector() as ready:
        ready.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not requests:
                    ready.unregister(key.fd)
                    _bury(key.fd, *key.data)
                    continue
                asked, descriptors = _receive(requests)
                if asked is None:
                    return None
                child = os.fork()
                if child == 0:
                    # Or they would close, at their end, what the program opened in their place.
                    ready.close()
                    requests.close()
                    _become(asked, descriptors[1:])
                    return asked
                for descriptor in descriptors[1:]:
                    os.close(descriptor)
                os.write(descriptors[0], STATUS.pack(child))
                ready.register(os.pidfd_open(child), selectors.EVENT_READ, (child, descriptors[0]))


def _receive(requests: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 1 + _STREAMS)
    return (json.loads(message), descriptors) if message else (None, [])


def _bury(handle: int, child: int, status: int) -> None:
    _, how = os.waitpid(child, 0)
    with suppress(BrokenPipeError):  # whoever asked does not want to know any more
        os.write(status, STATUS.pack(how))
    os.close(status)
    os.close(handle)


def _become(asked: dict[str, Any], streams: list[int]) -> None:
    """Put the process into the state in which an interpreter begins with a program."""
    if asked["new_session"]:
        os.setsid()
    # Above the three, so that none is overwritten before it is copied.
    moved = [os.dup(one) for one in streams]
    for number, descriptor in enumerate(moved):
        os.dup2(descriptor, number)
    os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))
    os.chdir(asked["folder"])
    os.environ.clear()  # noqa: TID251 - handed on
    os.environ.update(asked["environment"])  # noqa: TID251
    _renew_streams()
    # They draw a seed when they are imported; the standard library draws anew in a child by itself.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    importlib.invalidate_caches()


def _renew_streams() -> None:
    """Buffers and lines as Python chooses them for what is behind the descriptors now."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        # With PYTHONUNBUFFERED nothing that is written may wait in between.
        at_once = number > 0 and old.write_through
        file = open(number, "rb" if number == 0 else "wb", -1 + at_once, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            file,
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=name == "stderr" or file.isatty(),
            write_through=at_once,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(asked: dict[str, Any]) -> None:
    """Run the program as ``__main__``; leaves as the interpreter does, by way of its own end."""
    arguments: list[str] = asked["arguments"]
    kind, rest = (arguments[0], arguments[1:]) if arguments[0] in ("-c", "-m") else ("", arguments)
    program = types.ModuleType("__main__")
    program.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = program
    sys.argv = [kind or rest[0], *rest[1:]]
    sys.orig_argv = [sys.executable, *arguments]
    # The first is the folder of this file.
    folders = {"-c": "", "-m": asked["folder"], "": str(Path(rest[0]).resolve().parent)}
    sys.path[0] = folders[kind]
    try:
        if kind == "-m":
            # What ``python -m`` itself calls; runpy's public functions leave another __main__.
            runpy._run_module_as_main(rest[0])  # pyright: ignore[reportAttributeAccessIssue]
        elif kind == "-c":
            exec(compile(rest[0], "<string>", "exec"), program.__dict__)
        else:
            _run_file(rest[0], program)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - shown, as by the interpreter
        _fail(error)


def _run_file(path: str, program: types.ModuleType) -> None:
    path = str(Path(path).absolute())
    try:
        with io.open_code(path) as file:
            text = file.read()
    except OSError as error:
        said = f"{sys.executable}: can't open file {path!r}: "
        sys.stderr.write(f"{said}[Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    program.__file__ = path
    program.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    exec(compile(text, path, "exec"), program.__dict__)


def _fail(error: BaseException) -> NoReturn:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, KeyboardInterrupt):
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
