"""A trained model for other programs: torch.export's archive, or ONNX. Each file is checked.

What was written is read back and run on the example that the task gave; where its output is not
the model's own, the file is removed and the difference said.
"""

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from pitstop.errors import ConfigError, DataError, MissingPackage, os_errors_as
from pitstop.train.state.weights import load_weights, read_weights
from pitstop.train.task import BatchT, ExportForm, Exports, Task

MOST_DIFFERENCE: Final = 1e-4
"""Of an output from the model's own, for each unit of the largest number in it (at least 1)."""

_ONNX_PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One file that gives what the model gives."""

    path: str
    kind: str
    size_bytes: int
    difference: float
    """Largest, in units of the largest number of the output, or of 1 where that is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExport:
    """A trained model, written for other programs."""

    workload: str
    checkpoint: str
    inputs: dict[str, str]
    """Kind and shape of each, by name."""
    output: str
    files: tuple[ExportedFile, ...]


def export_checkpoint(
    task: Task[BatchT], checkpoint: Path, *, program: Path | None, onnx: Path | None
) -> ModelExport:
    """Write trained weights with their model, and check what was written.

    Args:
        task: Its model must be one with reference kernels: fused ones are not exported.
        checkpoint: Where the weights are.
        program: Archive of torch.export to write.
        onnx: ONNX file to write.

    Raises:
        PitstopError: Where the checkpoint or a file cannot be used, a package is missing, or what
            was written does not give what the model gives.
    """
    if not isinstance(task, Exports):
        raise ConfigError(f"the workload {task.name} has no model to export")
    if onnx is not None:
        require_onnx()
    weights = read_weights(checkpoint)
    model = task.build_model()
    load_weights(model, weights)
    form = task.export_form(model.eval())
    return ModelExport(
        workload=task.name,
        checkpoint=str(weights.path),
        inputs={
            name: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            for name, value in form.inputs.items()
        },
        output=f"{form.output} {list(form.expected.shape)}",
        files=write_exports(form, program=program, onnx=onnx),
    )


def write_exports(
    form: ExportForm, *, program: Path | None, onnx: Path | None
) -> tuple[ExportedFile, ...]:
    """Write a model in one form or both, and check each file.

    Raises:
        DataError: Where a file cannot be written or does not give what the model gives.
    """
    traced = trace(form.module, form)
    files: list[ExportedFile] = []
    if program is not None:
        with _written(program) as made:
            torch.export.save(traced, made)
            got = torch.export.load(made).module()(*form.inputs.values())
            files.append(_checked(form, got.detach().numpy(), (made, program), "torch.export"))
    if onnx is not None:
        with _written(onnx) as made:
            _save_onnx(traced, form, made)
            files.append(_checked(form, run_onnx(made, form), (made, onnx), "ONNX"))
    return tuple(files)


def trace(module: nn.Module, form: ExportForm) -> torch.export.ExportedProgram:
    """Follow one pass of a model on the example, with fixed shapes."""
    with torch.no_grad(), warnings.catch_warnings():
        # About details of torch that nobody here decides.
        warnings.simplefilter("ignore")
        return torch.export.export(module, tuple(form.inputs.values()))


def require_onnx() -> None:
    """Look for the packages that writing and running ONNX needs, before anything is computed.

    Raises:
        MissingPackage: One of them is not installed.
    """
    for package in _ONNX_PACKAGES:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            raise MissingPackage(package, purpose="exporting ONNX") from error


def run_onnx(path: Path, form: ExportForm) -> np.ndarray[Any, Any]:
    """Run an ONNX file on the example, on the CPU."""
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    fed = {name: value.numpy() for name, value in form.inputs.items()}
    return session.run(None, fed)[0]


def _save_onnx(traced: torch.export.ExportedProgram, form: ExportForm, path: Path) -> None:
    # The exporter names each operator of packages that are not installed, none of which is used.
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.onnx.export(
                traced,
                input_names=list(form.inputs),
                output_names=[form.output],
                dynamo=True,
                verbose=False,
            )
        assert found is not None, "given back where no file is named"
        found.save(str(path), external_data=False)
    finally:
        logger.setLevel(level)


def _checked(
    form: ExportForm, got: np.ndarray[Any, Any], paths: tuple[Path, Path], kind: str
) -> ExportedFile:
    made, path = paths
    expected = form.expected.numpy()
    largest = max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(got - expected).max()) / largest
    # Not "larger than": what is no number is no answer.
    if got.shape != expected.shape or not difference <= MOST_DIFFERENCE:
        raise DataError(
            f"{path} was not written: as {kind} the model gives other outputs, by up to "
            f"{difference:.1e} of the largest; at most {MOST_DIFFERENCE:.0e} is allowed"
        )
    size = made.stat().st_size
    return ExportedFile(path=str(path), kind=kind, size_bytes=size, difference=difference)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Give a place beside a file; what is there in the end becomes the file."""
    with os_errors_as(DataError, f"cannot write {path}"):
        handle, name = tempfile.mkstemp(prefix=".", suffix=path.suffix or ".pt2", dir=path.parent)
    os.close(handle)
    made = Path(name)
    try:
        yield made
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
