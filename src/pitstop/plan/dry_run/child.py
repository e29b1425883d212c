"""A dry run as a process of its own: faking a GPU changes torch, and may end the interpreter.

python -m pitstop.plan.dry_run.child REQUEST.json ANSWER.json
"""

import sys
import warnings
from pathlib import Path

import pitstop.kernels
from pitstop.errors import PitstopError
from pitstop.plan.dry_run.request import Answer, Request
from pitstop.records.store import from_json, write_json


def main() -> None:
    """Read a request, run it, write the answer."""
    request = from_json(Path(sys.argv[1]).read_text(encoding="utf-8"), Request)
    # The planned machine has Triton even where this one has none; before anybody asks.
    pitstop.kernels.has_triton = lambda: True
    warnings.simplefilter("ignore")  # of libraries that look for a GPU; nobody would see them
    write_json(_answer(request), Path(sys.argv[2]))


def _answer(request: Request) -> Answer:
    from pitstop.plan.dry_run.fake_gpu import CannotFakeError

    try:
        if request.build is not None:
            from pitstop.plan.dry_run.user_model import trace_build

            return Answer(trace=trace_build(request))
        from pitstop.plan.dry_run.configured import trace_config, trace_config_evaluation

        if request.part == "evaluation":
            return Answer(evaluation=trace_config_evaluation(request))
        return Answer(trace=trace_config(request))
    except CannotFakeError as error:
        return Answer(error=str(error), operation=error.operation)
    except PitstopError as error:
        return Answer(error=str(error))


if __name__ == "__main__":
    main()
