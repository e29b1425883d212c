"""``pitstop plan``: will it fit, how fast will it be, before it runs and without a GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.entrances import is_command
from pitstop.cli.output import JsonPath, Overrides, require_place, require_torch, show
from pitstop.errors import ConfigError, PitstopError

if TYPE_CHECKING:
    from pitstop.plan.memory import Gpu
    from pitstop.plan.speed import Ceilings
    from pitstop.records.plans.plan import MemoryPlan


def plan(  # noqa: PLR0913 - one parameter an option
    target: Annotated[
        str, typer.Argument(metavar="CONFIG|MODULE:FUNCTION", help="YAML file, or your build().")
    ],
    overrides: Overrides = None,
    *,
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the GPU, such as 48GiB.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU by name, such as A100-80GB.")
    ] = None,
    what_if: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Also plan with this changed.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="GPUs that exchange gradients.")] = 1,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Of your build(): samples in its batch.")
    ] = None,
    precision: Annotated[str, typer.Option(help="Of your build(): fp32, tf32, bf16, fp16.")] = (
        "fp32"
    ),
    optimizer: Annotated[str, typer.Option(help="Of your build(): adamw, adamw8bit, sgd.")] = (
        "adamw"
    ),
    host_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of the host, where it is not this machine."),
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Short real run of the same model.")
    ] = None,
    table: Annotated[bool, typer.Option(help="Also plan other choices.")] = True,
    json: JsonPath = None,
) -> None:
    """Plan a run: who holds device memory at its peak, does it fit, how long is a step."""
    _refuse_scripts(target)
    require_torch("planning")
    require_place(json)
    device, ceilings = _gpu(gpu, gpu_memory)
    if ":" in target and not Path(target).exists():
        from pitstop.plan.user_build import plan_build

        made = plan_build(
            target,
            device,
            ceilings,
            settings=(batch_size, precision, optimizer),
        )
    else:
        from pitstop.plan.configured_run import Wanted, plan_config

        made = plan_config(
            Wanted(
                config=Path(target),
                overrides=tuple(overrides or ()),
                gpu=device,
                ceilings=ceilings,
                ranks=ranks,
                what_if=tuple(what_if or ()),
                with_table=table,
                host_bytes=None if host_memory is None else _size("--host-memory", host_memory),
                calibrate=calibrate,
            )
        )
    _show(made, json)


def _refuse_scripts(target: str) -> None:
    if is_command(target):
        raise PitstopError(
            f"{target} is a script, and scripts are not planned; write a function "
            "build() -> (model, batch) and give it as pitstop plan MODULE:build"
        )


def _show(made: "MemoryPlan", json: str | None) -> None:
    from pitstop.report.plan import plan_report

    show(made, lambda: plan_report(made), json)
    raise typer.Exit(0 if made.verdict == "fits" else 1)


def _gpu(name: str | None, memory: str | None) -> "tuple[Gpu, Ceilings | None]":
    """Read which GPU is planned for.

    Raises:
        PitstopError: Where neither its name nor its memory is given.
    """
    from pitstop.plan.gpus import find_gpu
    from pitstop.plan.memory import Gpu

    if name is None and memory is None:
        raise PitstopError(
            "say which GPU to plan for: --gpu NAME (memory and speed), or --gpu-memory SIZE "
            "(memory alone)"
        )
    ceilings = None if name is None else find_gpu(name)
    size = ceilings.gpu_bytes if memory is None and ceilings else _size("--gpu-memory", memory)
    return Gpu(name=name or f"a GPU of {memory}", num_bytes=size), ceilings


def _size(option: str, text: str | None) -> int:
    from pitstop.config.quantities import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}; write it as 48GiB") from error
