"""``pitstop explain``: what a finding means and what to change, or all findings in a line each."""

from typing import Annotated

import typer

from pitstop.cli.output import JsonPath, show

Code = Annotated[
    str | None,
    typer.Argument(metavar="[CODE]", help="Name of a finding, such as DATA001; all without it."),
]
Language = Annotated[str, typer.Option("--lang", metavar="en|zh", help="Language of the text.")]


def explain(code: Code = None, *, lang: Language = "en", json: JsonPath = None) -> None:
    """Say what a finding means: what to change, the cause, how it is measured."""
    from pitstop.report import explain as pages

    if code is None:
        found = pages.explain_all(lang)
        show(found, lambda: pages.overview_report(found), json)
    else:
        one = pages.explain(code, lang)
        show(one, lambda: pages.explanation_report(one), json)
