"""``pitstop data``: datasets made, so far."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.output import JsonPath, show
from pitstop.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable

    from pitstop.workloads.deblur.synthetic import MadeClips

app = typer.Typer(help="Generate datasets.", no_args_is_help=True, add_completion=False)
make_app = typer.Typer(help="Generate a dataset.", no_args_is_help=True, add_completion=False)
app.add_typer(make_app, name="make")

Root = Annotated[Path, typer.Argument(help="Folder to make; it must not hold anything yet.")]
TrainClips = Annotated[int, typer.Option(min=1, help="Clips to train on.")]
TestClips = Annotated[int, typer.Option(min=1, help="Clips to evaluate on.")]
Frames = Annotated[int, typer.Option(min=1, help="Frames of each clip.")]
FrameSize = Annotated[str, typer.Option(metavar="HxW", help="Rows and columns of a frame.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed makes the same clips.")]


@make_app.command()
def deblur(  # noqa: PLR0913 - one argument for each option
    root: Root,
    *,
    train_clips: TrainClips = 4,
    test_clips: TestClips = 2,
    frames: Frames = 12,
    size: FrameSize = "96x128",
    seed: Seed = 0,
    json_path: JsonPath = None,
) -> None:
    """Generate blurred and sharp clips with the spikes of a spike camera."""
    from pitstop.report.data import made_clips_report

    made = _maker()(
        root,
        clips={"train": train_clips, "test": test_clips},
        frames=frames,
        size=_parse_size(size),
        seed=seed,
    )
    show(made, lambda: made_clips_report(made), json_path)


def _maker() -> "Callable[..., MadeClips]":
    """Give the generator, which needs what reads and writes images."""
    try:
        from pitstop.workloads.deblur.synthetic import make_clips
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        raise MissingExtra("pillow", extra="train", purpose="making clips") from error
    return make_clips


def _parse_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise DataError(f"--size must be rows x columns such as 96x128, not {text}")
    return int(match[1]), int(match[2])
