"""``pitstop verify``: does a change harm the training, and does a run pass its checklist?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.output import JsonPath, require_place, show
from pitstop.errors import PitstopError

if TYPE_CHECKING:
    from collections.abc import Sequence


def verify(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN | BASE.yaml CANDIDATE.yaml] [KEY=VALUE]..."),
    ] = None,
    *,
    json: JsonPath = None,
) -> None:
    """Hold a change against what it must not harm; with one run, go through its checklist."""
    words = targets or []
    settings = [word for word in words if "=" in word and not Path(word).exists()]
    named = [Path(word) for word in words if word not in settings]
    require_place(json)
    if len(named) == 1:
        raise typer.Exit(_check(named[0], settings, json))
    raise typer.BadParameter("name one run")


def _check(run: Path, settings: "Sequence[str]", json: str | None) -> int:
    from pitstop.report.verify import checklist_report
    from pitstop.verify.checks import check_run

    found = check_run(run, _targets(settings))
    show(found, lambda: checklist_report(found), json)
    return int(found.outcome != "passes")


def _targets(settings: "Sequence[str]") -> dict[str, float]:
    """Read targets given as ``targets.samples_per_s=100``.

    Raises:
        PitstopError: One is no target, or its value is no number that it may have.
    """
    from pydantic import ValidationError

    from pitstop.config.sections import TargetsSection

    known = ", ".join(f"targets.{name}" for name in TargetsSection.model_fields)
    given = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key.partition(".")[0] != "targets" or key[8:] not in TargetsSection.model_fields:
            raise PitstopError(f"{key} is no target of a run; there is {known}")
        given[key[8:]] = value
    try:
        return TargetsSection.model_validate(given).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise PitstopError(f"targets.{first['loc'][0]}: {first['msg']}") from error
