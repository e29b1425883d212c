"""``pitstop data``: datasets made, checked, packed, and their memory estimated."""

import re
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pitstop.cli.output import JsonPath, Overrides, require_torch, show
from pitstop.errors import ConfigError, DataError, MissingPackage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pitstop.config.sections import RunConfig
    from pitstop.data.check import DataCheck
    from pitstop.data.pack import PackSummary
    from pitstop.train.task import Task

app = typer.Typer(
    help="Generate, check and pack datasets; estimate their memory.",
    no_args_is_help=True,
    add_completion=False,
)
make_app = typer.Typer(help="Generate a dataset.", no_args_is_help=True, add_completion=False)
app.add_typer(make_app, name="make")


class Frames(StrEnum):
    """How frames lie in a pack."""

    DECODED = "decoded"
    ENCODED = "encoded"


Root = Annotated[Path, typer.Argument(help="Folder to make; it must not hold anything yet.")]
TrainClips = Annotated[int, typer.Option(min=1, help="Clips to train on.")]
TestClips = Annotated[int, typer.Option(min=1, help="Clips to evaluate on.")]
FrameCount = Annotated[int, typer.Option("--frames", min=1, help="Frames of each clip.")]
FrameSize = Annotated[str, typer.Option(metavar="HxW", help="Rows and columns of a frame.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed makes the same data.")]
PeopleCount = Annotated[
    int, typer.Option("--people", min=5, help="People; two in five are to test.")
]
ImageCount = Annotated[
    int, typer.Option("--images", min=4, help="About how many images of each person.")
]
ImageSize = Annotated[str, typer.Option(metavar="HxW", help="Rows and columns of an image.")]
CorruptCount = Annotated[
    int, typer.Option("--corrupt", min=0, help="Training images to break on purpose.")
]
SceneCount = Annotated[
    int, typer.Option("--scenes", min=2, help="Scenes; one in five is to evaluate on.")
]
SampleCount = Annotated[int, typer.Option("--samples", min=1, help="Key frames of each scene.")]
Source = Annotated[Path, typer.Argument(help="YAML file, or the dataset itself.")]
PackOutput = Annotated[
    Path | None, typer.Option(help="Pack to write; default: the dataset's name + .pack.")
]
PackFrames = Annotated[
    Frames | None,
    typer.Option(
        help="Pixels decoded once for all, or the files' own bytes; default: decoded, and encoded "
        "where only a configuration says at which size."
    ),
]
RankCount = Annotated[
    int | None, typer.Option(min=1, help="Training processes on the host; default: one per GPU.")
]


@make_app.command()
def deblur(  # noqa: PLR0913 - one argument for each option
    root: Root,
    *,
    train_clips: TrainClips = 4,
    test_clips: TestClips = 2,
    frames: FrameCount = 12,
    size: FrameSize = "96x128",
    seed: Seed = 0,
    json_path: JsonPath = None,
) -> None:
    """Generate blurred and sharp clips with the spikes of a spike camera."""
    from pitstop.report.data import made_clips_report

    with _with_pillow("making clips"):
        from pitstop.workloads.deblur.synthetic import make_clips
    made = make_clips(
        root,
        clips={"train": train_clips, "test": test_clips},
        frames=frames,
        size=_parse_size(size),
        seed=seed,
    )
    show(made, lambda: made_clips_report(made), json_path)


@make_app.command()
def reid(  # noqa: PLR0913 - one argument for each option
    root: Root,
    *,
    people: PeopleCount = 100,
    images: ImageCount = 40,
    size: ImageSize = "192x96",
    corrupt: CorruptCount = 1,
    seed: Seed = 0,
    json_path: JsonPath = None,
) -> None:
    """Generate people in colour, infrared, colour pencil, sketches and words."""
    from pitstop.report.data import made_people_report

    with _with_pillow("making people"):
        from pitstop.workloads.reid.synthetic.make import make_reid
    made = make_reid(
        root, people=people, images=images, size=_parse_size(size), seed=seed, corrupt=corrupt
    )
    show(made, lambda: made_people_report(made), json_path)


@make_app.command()
def bev(
    root: Root,
    *,
    scenes: SceneCount = 10,
    samples: SampleCount = 20,
    size: ImageSize = "450x800",
    seed: Seed = 0,
    json_path: JsonPath = None,
) -> None:
    """Generate a city seen by six cameras and a lidar, as a nuScenes set with its map."""
    from pitstop.report.data import made_world_report

    with _with_pillow("making a city"):
        from pitstop.workloads.bev.synthetic.make import make_bev
    made = make_bev(root, scenes=scenes, samples=samples, size=_parse_size(size), seed=seed)
    show(made, lambda: made_world_report(made), json_path)


@app.command()
def check(
    source: Source,
    overrides: Overrides = None,
    *,
    sums: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare every file with its SHA-256 in FILE; written where there is none.",
        ),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Read a whole dataset and name every file that is missing or damaged."""
    require_torch("reading datasets")
    from pitstop.report.data import check_report

    found = _with_sums(_check(source, overrides), sums)
    show(found, lambda: check_report(found), json_path)
    raise typer.Exit(1 if found.problems else 0)


@app.command()
def pack(
    source: Source,
    overrides: Overrides = None,
    *,
    output: PackOutput = None,
    frames: PackFrames = None,
    json_path: JsonPath = None,
) -> None:
    """Put a dataset into one file that is mapped into memory, with a sum for every member."""
    require_torch("reading datasets")
    from pitstop.report.data import pack_report

    packed = _pack(source, overrides, output, frames)
    show(packed, lambda: pack_report(packed), json_path)


@app.command()
def stats(
    source: Source,
    overrides: Overrides = None,
    *,
    ranks: RankCount = None,
    json_path: JsonPath = None,
) -> None:
    """Estimate the host memory that the data of a run take, before it runs."""
    require_torch("reading datasets")
    from pitstop.data.loader.sample_bytes import data_stats
    from pitstop.report.data import stats_report

    assumed: tuple[str, ...] = ()
    if _is_dataset(source, overrides):
        from pitstop.workloads.datasets import usual_task

        loaded, task, assumed = usual_task(source)
    else:
        loaded, task = _task(source, overrides)
    found = data_stats(
        str(source),
        task.train_samples(),
        task.collate,
        sections=(loaded.loader, loaded.cache, loaded.train),
        ranks=ranks,
    )
    found = replace(found, assumed=assumed)
    show(found, lambda: stats_report(found), json_path)
    raise typer.Exit(0 if found.fits and found.shm_fits else 1)


def _check(source: Path, overrides: list[str] | None) -> "DataCheck":
    if _is_dataset(source, overrides):
        from pitstop.workloads.datasets import check_dataset

        return check_dataset(source)
    from pitstop.data.pack import ChecksData

    _, task = _task(source, overrides)
    if not isinstance(task, ChecksData):
        raise ConfigError(
            f"the workload {task.name} cannot be checked by its configuration; give the folder of "
            "its dataset to `pitstop data check`"
        )
    return task.check_data()


def _with_sums(found: "DataCheck", sums: Path | None) -> "DataCheck":
    """Add what sums say: formats without sums of their own do not show a changed bit."""
    if found.packed:
        if sums is not None:
            raise ConfigError(
                f"--sums has no effect: {found.root} is a pack, which has checksums of its own"
            )
        return found
    if sums is None:
        note = "a changed bit in raw files is not seen without checksums; --sums FILE compares them"
        return replace(found, notes=(*found.notes, note))
    from pitstop.data.sums import check_sums

    said = check_sums(Path(found.root), sums)
    return replace(
        found, problems=(*found.problems, *said.problems), notes=(*found.notes, *said.notes)
    )


def _pack(
    source: Path, overrides: list[str] | None, output: Path | None, frames: Frames | None
) -> "PackSummary":
    if _is_dataset(source, overrides):
        from pitstop.workloads.datasets import pack_dataset

        return pack_dataset(source, output, frames=None if frames is None else frames.value)
    from pitstop.data.pack import PacksData

    _, task = _task(source, overrides)
    if not isinstance(task, PacksData):
        raise ConfigError(
            f"the workload {task.name} does not pack its dataset; train on its folder"
        )
    return task.pack_data(output, frames=(frames or Frames.DECODED).value)


def _is_dataset(source: Path, overrides: list[str] | None) -> bool:
    """Tell a dataset from a configuration; settings go with the latter alone."""
    from pitstop.data.pack import is_pack

    if not source.is_dir() and not is_pack(source):
        return False
    if overrides:
        raise ConfigError(
            f"{overrides[0]} has no effect: {source} is a dataset; settings go with a configuration"
        )
    return True


def _task(config: Path, overrides: list[str] | None) -> "tuple[RunConfig, Task[Any]]":
    from pitstop.cli.evaluate import load_task

    return load_task(config, overrides)


@contextmanager
def _with_pillow(purpose: str) -> "Iterator[None]":
    """Name the package where what reads and writes images is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        raise MissingPackage("pillow", purpose=purpose) from error


def _parse_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise DataError(f"--size must be rows x columns such as 96x128, not {text}")
    return int(match[1]), int(match[2])
