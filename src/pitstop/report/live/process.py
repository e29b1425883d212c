"""Whether the process that writes a record still lives, where that can be told from here."""

import socket
from collections.abc import Callable

import psutil

from pitstop.records.run import Attempt

IsAlive = Callable[[Attempt], bool | None]

# A header's clock reading and the system's own of a process differ by less than this.
_SLACK_S = 5.0


def is_alive(attempt: Attempt) -> bool | None:
    """Tell whether an attempt's process lives; None where it ran on another host.

    A process that began after the attempt did has only inherited its number.
    """
    if attempt.pid is None or attempt.host != socket.gethostname():
        return None
    try:
        process = psutil.Process(attempt.pid)
        began_s, status = process.create_time(), process.status()
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return None
    if status == psutil.STATUS_ZOMBIE:
        return False
    started_s = attempt.started_unix_s
    return started_s is None or began_s <= started_s + _SLACK_S
