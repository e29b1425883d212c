"""Asks a module of ours in a process of its own: a request as JSON in, an answer as JSON out."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, TypeVar

from pitstop.records.store import from_json, write_json

AnswerT = TypeVar("AnswerT")

_LONGEST_S: Final = 600


def ask_child(module: str, request: Any, answer_type: type[AnswerT]) -> AnswerT | str:
    """Run `python -m MODULE REQUEST ANSWER`; give its answer, or a sentence on why there is none.

    Args:
        module: Takes two paths: reads the request from the first, writes to the second.
        request: A dataclass.
        answer_type: A dataclass.
    """
    with tempfile.TemporaryDirectory(prefix="pitstop-plan-") as name:
        asked, answered = Path(name) / "request.json", Path(name) / "answer.json"
        write_json(request, asked)
        try:
            ended = subprocess.run(  # noqa: S603 - this interpreter, a module of ours
                [sys.executable, "-m", module, str(asked), str(answered)],
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"the dry run took more than {_LONGEST_S} s and was ended"
        if answered.exists():
            return from_json(answered.read_text(encoding="utf-8"), answer_type)
        return _how_it_ended(ended)


def _how_it_ended(ended: "subprocess.CompletedProcess[str]") -> str:
    lines = ended.stderr.strip().splitlines() or ["it said nothing"]
    if ended.returncode < 0:
        return f"the dry run was ended by signal {-ended.returncode}: {lines[-1]}"
    return f"the dry run failed: {lines[-1]}"
