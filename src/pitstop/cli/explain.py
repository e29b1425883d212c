"""``pitstop explain``: what a finding means, or a run's findings, or all in a line each."""

from pathlib import Path
from typing import Annotated

import typer

from pitstop.cli.output import JsonPath, Language, show

Code = Annotated[
    str | None,
    typer.Argument(
        metavar="[CODE | RUN]",
        help="Name of a finding, such as DATA001, or a measured run; all findings without it.",
    ),
]


def explain(code: Code = None, *, lang: Language = "en", json: JsonPath = None) -> None:
    """Say what a finding means, or all findings of a run: what to change, the cause, how known."""
    from pitstop.report import explain as pages

    if code is None:
        found = pages.explain_all(lang)
        show(found, lambda: pages.overview_report(found), json)
    elif Path(code).exists():
        from pitstop.doctor.judge import judge_run
        from pitstop.report.explained_run import explained_verdict

        verdict = judge_run(Path(code)).verdict
        shown = explained_verdict(verdict, lang)
        show(verdict, lambda: shown, json)
    else:
        one = pages.explain(code, lang)
        show(one, lambda: pages.explanation_report(one), json)
