"""``pitstop train``: one run, from a configuration to its ending."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from pitstop.cli.output import Config, Overrides, require_torch


def train(
    config: Config,
    overrides: Overrides = None,
    *,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="auto|never|PATH",
            help="Go on from the newest whole checkpoint, or one; never: begin at step 0.",
        ),
    ] = None,
    work_dir: Annotated[Path | None, typer.Option(help="Overrides run.work_dir.")] = None,
) -> None:
    """Train; on several GPUs: torchrun --nproc-per-node N -m pitstop train CONFIG."""
    launcher = os.getppid()  # before torch is imported, which takes seconds
    require_torch("training")
    from pitstop.cli.targets import ClosingTargets
    from pitstop.config.dump import to_yaml
    from pitstop.config.load import load_config
    from pitstop.measure.host.limits import read_host_limits
    from pitstop.report.config import warning_lines
    from pitstop.report.progress import ProgressLines
    from pitstop.report.terminal import make_console
    from pitstop.train.run import TrainingRun
    from pitstop.workloads.catalogue import build_task, outside_kinds

    kinds = outside_kinds()
    settings = list(overrides or ())
    if work_dir is not None:
        settings.append(f"run.work_dir={json.dumps(str(work_dir))}")  # quoted: it is no YAML
    loaded = load_config(config, settings, kinds=kinds, host=read_host_limits())
    console = make_console()
    for line in warning_lines(config, loaded):
        console.print(line)
    outcome = TrainingRun(
        config=loaded.config,
        config_yaml=to_yaml(loaded.config, kinds=kinds),
        task=build_task(loaded.config),
        observers=(ProgressLines(console), ClosingTargets(loaded.config.targets, console)),
        resume=resume,
        launcher=launcher,
    ).run()
    raise typer.Exit(0 if outcome.status == "finished" else 1)
