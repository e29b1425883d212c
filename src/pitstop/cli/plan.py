"""``pitstop plan``: will it fit, how fast will it be, before it runs and without a GPU."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from pitstop.cli.doctor import command_after_dashes, words_before_dashes
from pitstop.cli.entrances import refuse_unrunnable
from pitstop.cli.output import (
    JsonPath,
    Overrides,
    refuse_given,
    require_place,
    require_torch,
    show,
    write_record,
)
from pitstop.errors import ConfigError, PitstopError

if TYPE_CHECKING:
    from pitstop.plan.memory import Gpu
    from pitstop.plan.speed import Ceilings
    from pitstop.records.plans.plan import MemoryPlan


_OF_BUILDS: Final = {"precision": "--precision", "optimizer": "--optimizer"}
_OF_CONFIGS: Final = {
    "ranks": "--ranks",
    "host_memory": "--host-memory",
    "calibrate": "--calibrate",
}
_NOT_OF_BUILDS: Final = {
    "overrides": "KEY=VALUE",
    **_OF_CONFIGS,
    "what_if": "--what-if",
    "table": "--no-table",
}


def plan(  # noqa: PLR0913 - one parameter an option
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG | MODULE:FUNCTION | -- CMD ...]",
            help="YAML file, your build(), or a training script to run.",
        ),
    ] = None,
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
        int | None, typer.Option(min=1, help="Of your build() or script: samples in its batch.")
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
    require_torch("planning")
    require_place(json)
    command = command_after_dashes(ctx)
    if (target is None) == (not command):
        raise typer.BadParameter("name a configuration, a build function, or a command after --")
    device, ceilings = _gpu(gpu, gpu_memory)
    if command:
        refuse_given(
            ctx, _OF_BUILDS | _OF_CONFIGS, "a configuration or a build(), not for a script"
        )
        refuse_unrunnable(words_before_dashes(ctx), command, of="plan")
        _plan_script(tuple(command), device, (batch_size, tuple(what_if or ()), table), json)
    assert target is not None
    if ":" in target and not Path(target).exists():
        from pitstop.plan.user_build import plan_build

        refuse_given(
            ctx,
            _NOT_OF_BUILDS,
            "a configuration; of a build() change --batch-size, --precision or --optimizer",
        )
        made = plan_build(
            target,
            device,
            ceilings,
            settings=(batch_size, precision, optimizer),
        )
    else:
        from pitstop.plan.configured_run import Wanted, plan_config

        refuse_given(
            ctx,
            {"batch_size": "--batch-size", **_OF_BUILDS},
            "a build(); of a configuration set train.batch_size, train.precision or optimizer.kind",
        )
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


def _plan_script(
    command: tuple[str, ...],
    device: "Gpu",
    options: tuple[int | None, tuple[str, ...], bool],
    json: str | None,
) -> NoReturn:
    """Run a script's first steps and plan from them; its output is its own, ours is on stderr."""
    from pitstop.plan.script.planned import WantedScript, plan_script
    from pitstop.report.plan import plan_report
    from pitstop.report.terminal import make_console

    batch_size, what_if, with_table = options
    made = plan_script(
        WantedScript(
            command=command,
            gpu=device,
            batch_size=batch_size,
            what_if=what_if,
            with_table=with_table,
            stdout=sys.stderr.fileno() if json == "-" else None,
        )
    )
    make_console(sys.stderr).print(plan_report(made))
    write_record(made, json)
    raise typer.Exit(0 if made.verdict == "fits" else 1)


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
    from pitstop.plan.memory import CONTEXT_BYTES, Gpu
    from pitstop.records.units import bytes_text

    if name is None and memory is None:
        raise PitstopError(
            "say which GPU to plan for: --gpu NAME (memory and speed), or --gpu-memory SIZE "
            "(memory alone)"
        )
    ceilings = None if name is None else find_gpu(name)
    size = ceilings.gpu_bytes if memory is None and ceilings else _size("--gpu-memory", memory)
    if size <= CONTEXT_BYTES:
        raise ConfigError(
            f"--gpu-memory {memory}: driver and libraries take {bytes_text(CONTEXT_BYTES)} of a "
            "GPU, which leaves nothing for tensors; give all the memory that the GPU has"
        )
    return Gpu(name=name or f"a GPU of {memory}", num_bytes=size), ceilings


def _size(option: str, text: str | None) -> int:
    from pitstop.config.quantities import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}; write it as 48GiB") from error
