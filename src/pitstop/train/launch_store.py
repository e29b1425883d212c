"""Where the ranks of a launch meet: a part of the launcher's store that no earlier attempt used.

``torchrun`` keeps one store over all its restarts, and nothing in a rank's environment tells the
attempts of all hosts apart. Left to itself, torch then finds addresses of ranks that have ended: a
rank that starts first waits for one of them, in vain. So the ranks first agree on a name:

    others   write a word of their own: "hello/1"
    first    writes the name, and the words it has seen, until all have answered: "offer"
    others   find their own word in the offer, and answer under its name: "ack/NAME/1"

A word or an answer of an earlier attempt is never taken for one of this: both are new each time.
"""

import json
import secrets
import time
from datetime import timedelta
from typing import Final

from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage] - documented there
    Store,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from pitstop.errors import PitstopError

_POLL_S: Final = 0.02


def store_of_launch(timeout: timedelta | None = None) -> Store:
    """Give the store of this launch and attempt.

    Args:
        timeout: How long to wait for the other ranks; None for torch's own limit.

    Raises:
        PitstopError: Other ranks did not come in time.
    """
    limit = default_pg_timeout if timeout is None else timeout
    store, rank, world_size = next(rendezvous("env://", timeout=limit))
    store.set_timeout(limit)
    meeting = PrefixStore("pitstop", store)
    name = agree_on_name(meeting, rank=rank, world_size=world_size, limit=limit)
    return PrefixStore(f"attempt-{name}", store)


def agree_on_name(store: Store, *, rank: int, world_size: int, limit: timedelta) -> str:
    """Agree with all other ranks of this attempt on a name that no attempt had before.

    Raises:
        PitstopError: They did not all come within the limit.
    """
    until_s = time.monotonic() + limit.total_seconds()
    word = secrets.token_hex(8)
    if rank == 0:
        return _offer(store, word, world_size, until_s)
    store.set(f"hello/{rank}", word)
    while True:
        name, words = json.loads(_read(store, "offer", until_s))
        if words.get(str(rank)) == word:
            store.set(f"ack/{name}/{rank}", "1")
            return str(name)
        _wait(until_s)


def _offer(store: Store, name: str, world_size: int, until_s: float) -> str:
    others = [str(rank) for rank in range(1, world_size)]
    offered: dict[str, str] = {}
    while not all(store.check([f"ack/{name}/{rank}"]) for rank in others):
        seen = {rank: _read(store, f"hello/{rank}", until_s) for rank in others}
        if seen != offered:
            store.set("offer", json.dumps([name, seen]))
            offered = seen
        _wait(until_s)
    return name


def _read(store: Store, key: str, until_s: float) -> str:
    while not store.check([key]):
        _wait(until_s)
    return store.get(key).decode()


def _wait(until_s: float) -> None:
    if time.monotonic() > until_s:
        raise PitstopError(
            "the other ranks of this launch did not come; see that all of them were started, "
            "and that their hosts reach each other"
        )
    time.sleep(_POLL_S)
