"""The command line, run in the process of the tests."""

import sys
from collections.abc import Callable

import pytest

from pitstop.cli.main import main

Run = Callable[..., tuple[int, str, str]]
"""Takes further arguments; gives the exit code and what went to stdout and stderr."""


def command_line(
    streams: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *first: object
) -> Run:
    """Give a function that runs `pitstop`, with these arguments first; none may end in a traceback.

    `streams` is `capsys`, or `capfd` where processes that are started write as well.
    """

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pitstop", *map(str, (*first, *arguments))])
        with pytest.raises(SystemExit) as leaving:
            main()
        captured = streams.readouterr()
        assert "Traceback" not in captured.err
        return int(leaving.value.code or 0), captured.out, captured.err

    return invoke
