"""Configurations as text: what became of an old one, and whether a new one is sound."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pitstop.config.legacy.convert import KeyAccount, LegacyImport
from pitstop.config.legacy.presets import Nearest
from pitstop.config.legacy.verdicts import Status
from pitstop.config.load import LoadedConfig
from pitstop.config.problems import problem_lines

_SHOWN = 12
_TRIED = "tried: the model and its optimizer were built, the first samples were read"
_NOT_TRIED = "not tried: torch is not installed, so neither model nor data were opened"
_TITLES = {
    Status.APPLIED: "applied as they are",
    Status.RENAMED: "renamed",
    Status.CHANGED: "changed",
    Status.NO_EFFECT: "without effect",
    Status.NO_COUNTERPART: "without counterpart",
    Status.REFUSED: "refused",
    Status.UNKNOWN: "not known, and left out",
}


def import_report(result: LegacyImport, *, written_to: Path | None = None) -> Text:
    """Give the account of a conversion: the count, every old key by what became of it, the rest."""
    text = Text(f"{result.source}: {_counts(result)}\n", style="bold")
    for status, title in _TITLES.items():
        accounts = [account for account in result.accounts if account.status == status]
        if accounts:
            text.append(f"\n{title}\n", style="bold")
            text.append("".join(_account_lines(accounts)), style="not bold")
    if result.additions:
        text.append("\nadded, because the original had it fixed in its code\n", style="bold")
        lines = (f"  {add.key} = {add.value}\n    {add.reason}\n" for add in result.additions)
        text.append("".join(lines), style="not bold")
    if result.warnings:
        text.append("\nworth knowing\n", style="bold")
        text.append("".join(f"  {warning}\n" for warning in result.warnings), style="not bold")
    if result.nearest is not None:
        text.append(f"\nnearest preset: {result.nearest.preset}\n", style="bold")
        text.append("".join(_difference_lines(result.nearest)), style="not bold")
    if written_to is not None:
        text.append(f"\nwrote {written_to}; {_next(result, written_to)}", style="not bold")
    text.rstrip()
    return text


def _next(result: LegacyImport, written_to: Path) -> str:
    if not result.missing:
        return f"next: pitstop config check {written_to}"
    lacking = ", ".join(result.missing)
    return f"it is a part and lacks {lacking}: name it under `base:` of a whole configuration"


def _difference_lines(nearest: Nearest) -> Iterator[str]:
    shown = nearest.differences[:_SHOWN]
    width = max((len(difference.key) for difference in shown), default=0)
    for difference in shown:
        yield f"  {difference.key:<{width}}  {difference.here}, there {difference.preset}\n"
    if not shown:
        yield "  no difference in what is written\n"
    if len(nearest.differences) > _SHOWN:
        yield f"  and {len(nearest.differences) - _SHOWN} more\n"


def check_report(source: Path, loaded: LoadedConfig, *, was_tried: bool) -> Text:
    """Say that a configuration can be used, how far it was tried, and what is worth knowing."""
    train = loaded.config.train
    length = f"{train.steps} steps" if train.steps is not None else f"{train.epochs} epochs"
    batch = f"batch {train.batch_size} x {train.accumulate} a device"
    text = Text(f"{source} is sound: {loaded.config.model.kind}, {length}, {batch}", style="bold")
    text.append(f"\n{_TRIED if was_tried else _NOT_TRIED}", style="not bold")
    if loaded.warnings:
        lines = "\n".join(problem_lines(loaded.warnings, source=str(source)))
        text.append(f"\n\nworth knowing\n{lines}", style="not bold")
    text.append(f"\n\nnext: pitstop train {source}", style="not bold")
    return text


def warning_lines(source: Path, loaded: LoadedConfig) -> list[str]:
    """What is worth knowing about a configuration before it runs."""
    return [f"warning:{line}" for line in problem_lines(loaded.warnings, source=str(source))]


def print_text(text: Text, *, stderr: bool = False) -> None:
    """Print, in whole lines where no terminal would show them."""
    console = Console(highlight=False, stderr=stderr)
    console.print(text, soft_wrap=not console.is_terminal)


def _counts(result: LegacyImport) -> str:
    statuses = [account.status for account in result.accounts]
    parts = [f"{statuses.count(status)} {status}" for status in _TITLES if status in statuses]
    title = f"{len(statuses)} keys of the {result.guide} guide"
    return f"{title}: {', '.join(parts)}; written as {result.column}"


def _account_lines(accounts: list[KeyAccount]) -> Iterator[str]:
    width = max(len(account.old_key) for account in accounts)
    for account in accounts:
        ran, wanted = account.ran or "-", account.wanted or "-"
        both = ran if ran == wanted else f"ran: {ran}; wanted: {wanted}"
        yield (
            f"  {account.old_key:<{width}}  {both}\n" if both != "-" else (f"  {account.old_key}\n")
        )
        if account.reason:
            yield f"    {account.reason}\n"
