"""Dry runs in processes of their own: faking a GPU changes torch, and may end the interpreter.

python -m pitstop.plan.dry_run.child REQUESTS.json ANSWERS.json
"""

import os
import sys
import tempfile
import traceback
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch

import pitstop.kernels
from pitstop.errors import PitstopError
from pitstop.measure.host.garbage import freeze_long_lived
from pitstop.plan.child_process import how_it_ended
from pitstop.plan.dry_run.configured import build_model, trace_config, trace_config_evaluation
from pitstop.plan.dry_run.fake_gpu import CannotFakeError
from pitstop.plan.dry_run.request import AT_ONCE, Answer, Answers, Request, Requests
from pitstop.plan.dry_run.user_model import trace_build
from pitstop.records.store import from_json, write_json


def main() -> None:
    """Read requests, run each in a fork, write the answers."""
    request_path, answer_path = map(Path, sys.argv[1:])  # before a user's module gets its own
    asked = from_json(request_path.read_text(encoding="utf-8"), Requests)
    # The planned machine has Triton even where this one has none; before anybody asks.
    pitstop.kernels.has_triton = lambda: True
    warnings.simplefilter("ignore")  # of libraries that look for a GPU; nobody would see them
    # A fork has none of the threads that torch would start here, and waits for them for ever.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="pitstop-plan-") as folder:
        answers = answer_all(asked.requests, Path(folder))
    write_json(Answers(answers=tuple(answers)), answer_path)


def answer_all(requests: Sequence[Request], folder: Path) -> list[Answer]:
    """Run each request in a fork of this process, some at a time; a single one in the process.

    Args:
        requests: What to run.
        folder: For what the forks write.
    """
    if len(requests) == 1:
        return [_answer(requests[0])]
    prepare_forks(requests[0])
    waiting = deque(enumerate(requests))
    running: dict[int, int] = {}
    codes: dict[int, int] = {}
    while waiting or running:
        if waiting and len(running) < AT_ONCE:
            number, request = waiting.popleft()
            running[_forked(request, folder / str(number))] = number
        else:
            ended, status = os.wait()
            codes[running.pop(ended)] = os.waitstatus_to_exitcode(status)
    return [_read(folder / str(number), codes[number]) for number in range(len(requests))]


def prepare_forks(request: Request) -> None:
    """Have in this process what every fork would else do by itself.

    A model brings libraries along when it is built, seconds of imports in each fork. And collecting
    garbage goes through everything that was imported, in each fork again.
    """
    if request.config is not None:
        # Whatever goes wrong, the fork that answers this request says it.
        with suppress(Exception):
            build_model(request)
    freeze_long_lived()


def _forked(request: Request, path: Path) -> int:
    """Start a fork that answers one request; give its number."""
    return os.fork() or _answer_and_leave(request, path)


def _answer_and_leave(request: Request, path: Path) -> NoReturn:
    """Write an answer, and end without what the forking process is to do at its end."""
    said = os.open(path.with_suffix(".said"), os.O_WRONLY | os.O_CREAT)
    os.dup2(said, sys.stderr.fileno())
    code = 1
    try:
        write_json(_answer(request), path)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may get past a fork
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _read(path: Path, code: int) -> Answer:
    if path.exists():
        return from_json(path.read_text(encoding="utf-8"), Answer)
    said = path.with_suffix(".said").read_text(encoding="utf-8", errors="replace")
    return Answer(error=how_it_ended(code, said))


def _answer(request: Request) -> Answer:
    try:
        if request.build is not None:
            return Answer(trace=trace_build(request))
        if request.part == "evaluation":
            return Answer(evaluation=trace_config_evaluation(request))
        return Answer(trace=trace_config(request))
    except CannotFakeError as error:
        return Answer(error=str(error), operation=error.operation)
    except PitstopError as error:
        return Answer(error=str(error))


if __name__ == "__main__":
    main()
