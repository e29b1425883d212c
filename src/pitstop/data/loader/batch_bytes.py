"""How large batches are, estimated without opening anything in the training process."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from pitstop.data.loader.fetch import BatchFetcher, Request
from pitstop.data.loader.stream import quiet_worker_warnings
from pitstop.data.loader.worker_ends import stay_until_parent_ends
from pitstop.errors import DataError


def estimate_batch_bytes(
    fetcher: BatchFetcher[Any], requests: Sequence[Request], start_method: str | None
) -> list[int]:
    """Estimate the bytes of a batch of each request.

    Workers that are forked inherit what a dataset has opened by then, and two processes that read
    from one open file disturb each other. So where workers fork, a process of its own reads the
    sample, and nothing is open afterwards.

    Raises:
        DataError: Where a sample cannot be read.
    """
    if start_method != "fork":
        return [fetcher.estimate_bytes(request) for request in requests]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(fetcher, requests, theirs), daemon=True)
    with ours, quiet_worker_warnings():
        child.start()
        theirs.close()
        try:
            answer: list[int] | str = ours.recv()
        except EOFError:
            answer = f"a process that read a sample to measure it ended with {child.exitcode}"
        child.join()
    if isinstance(answer, str):
        raise DataError(answer)
    return answer


def _answer(fetcher: BatchFetcher[Any], requests: Sequence[Request], to: Connection) -> None:
    stay_until_parent_ends()
    try:
        to.send([fetcher.estimate_bytes(request) for request in requests])
    except DataError as error:
        to.send(str(error))
