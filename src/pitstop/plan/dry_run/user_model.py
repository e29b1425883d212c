"""A dry run of somebody's own model: `build() -> (model, batch)`.

A batch is what the model is called with: a tensor, a tuple or list of arguments, or a mapping of
them by name. Where the output has a `loss` that is what goes backward, else the sum of all its
numbers: a loss of the same size as any other that reads them once.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pitstop.config.sections import OptimizerSection
from pitstop.errors import PitstopError
from pitstop.plan.dry_run.account import settle
from pitstop.plan.dry_run.fake_gpu import DEVICE, CannotFakeError, fake_gpu
from pitstop.plan.dry_run.ledger import Ledger
from pitstop.plan.dry_run.request import Request
from pitstop.plan.dry_run.step import OPTIMIZERS, fused_names, operation_rows
from pitstop.records.plans.plan import StepTrace
from pitstop.train.optim.build import build_optimizer, planned_state_bytes

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_HOST = torch.device("cpu")


def trace_build(request: Request) -> StepTrace:
    """Run one step of what a function builds.

    On shapes alone where its operations allow it; else really, on this machine's processor, at one
    and at two samples, from which the rest is worked out.

    Raises:
        PitstopError: Where the function cannot be used.
    """
    try:
        with fake_gpu():
            return _trace(request, DEVICE, request.batch_size)
    except CannotFakeError as error:
        one, two = (trace_on_processor(request, samples) for samples in (1, 2))
        note = f"{error}; worked out from real steps of 1 and 2 samples on the processor instead"
        return replace(_extended(one, two, request.batch_size), notes=(note,))


def trace_on_processor(request: Request, batch_size: int | None) -> StepTrace:
    """Run one step really, on this machine's processor, and keep account of its memory."""
    return _trace(request, _HOST, batch_size)


def _find(request: Request) -> Callable[..., Any]:
    assert request.build is not None
    module, _, name = request.build.partition(":")
    if request.folder is not None:
        sys.path.insert(0, request.folder)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PitstopError(
            f"there is no function {name} in {module} ({error}); name it as MODULE:FUNCTION, from "
            "the folder in which the module lies"
        ) from error


def _trace(request: Request, device: torch.device, batch_size: int | None) -> StepTrace:
    place: list[str] = []
    ledger = Ledger(lambda: tuple(place), device_type=device.type)
    model, batch = _built(_find(request))
    batch = _resized(batch, batch_size)
    with ledger:
        model.to(device)
        ledger.own("parameters", model.parameters())
        ledger.own("buffers", model.buffers())
        section = OptimizerSection.model_validate(
            {"kind": _runnable(request.optimizer), "lr": 1e-3}
        )
        optimizer = build_optimizer(model, section)
        for first in (True, False):
            ledger.counter.counts.clear()
            start = ledger.events
            _step(request, model, batch, optimizer, place=place, device=device)
            if first:
                state = (v for each in optimizer.state.values() for v in each.values())
                ledger.own("optimizer state", (v for v in state if isinstance(v, Tensor)))
                _own_gradients(ledger, model)
    return _summed(request, ledger, model, (start, _samples(batch)))


def _built(build: Callable[..., Any]) -> tuple[nn.Module, Any]:
    made = build()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        name = getattr(build, "__name__", "build")
        raise PitstopError(f"{name}() gave {type(made).__name__}; it is to give (model, batch)")
    return made


def _step(
    request: Request,
    model: nn.Module,
    batch: Any,
    optimizer: torch.optim.Optimizer,
    *,
    place: list[str],
    device: torch.device,
) -> None:
    def enter(part: str) -> None:
        place[:] = [part]

    enter("copy")
    given = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)
    enter("forward")
    dtype = _DTYPES.get(request.precision)
    cast = nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
    with cast:
        output = _called(model, given)
    enter("loss")
    loss = _loss(output)
    del output
    enter("backward")
    loss.backward()
    enter("optimizer")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    place.clear()


def _called(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def _loss(output: Any) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    learned = [leaf for leaf in leaves if leaf.requires_grad]
    if not learned:
        raise PitstopError("the model's output needs no gradient, so there is no step to plan")
    return torch.stack([leaf.float().sum() for leaf in learned]).sum()


def _resized(batch: Any, batch_size: int | None) -> Any:
    """Repeat or leave out samples: tensors whose first side is the batch's get another one."""
    samples = _samples(batch)
    if batch_size is None or batch_size == samples:
        return batch

    def resize(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or tensor.shape[0] != samples:
            return tensor
        return tensor[torch.arange(batch_size) % samples]

    return pytree.tree_map_only(Tensor, resize, batch)


def _samples(batch: Any) -> int:
    sides = (leaf.shape[0] for leaf in pytree.tree_leaves(batch) if _is_sided(leaf))
    return next(sides, 1)


def _is_sided(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0


def _own_gradients(ledger: Ledger, model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda changed: ledger.own("gradients", [changed.grad])
            )


def _runnable(optimizer: str) -> str:
    """The kind that is run; the state of the 8-bit one is worked out."""
    return "adamw" if optimizer == "adamw8bit" else optimizer


def _summed(request: Request, ledger: Ledger, model: nn.Module, run: tuple[int, int]) -> StepTrace:
    first_event, samples = run
    account = settle(ledger, first_event)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    states = {kind: planned_state_bytes(kind, trained, momentum=0.9) for kind in OPTIMIZERS}
    owners, change = dict(account.owners), 0
    if request.optimizer == "adamw8bit":
        change = states["adamw8bit"] - owners.get("optimizer state", 0)
        owners["optimizer state"] = states["adamw8bit"]
    return StepTrace(
        model=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in trained),
        batch_size=samples,
        precision=request.precision,
        recompute="as built",
        kernels="as built",
        optimizer=request.optimizer,
        owners=owners,
        peak_bytes=account.peak_bytes + change,
        peak_place=account.place,
        peak_operation=account.operation,
        saved_bytes=account.saved_bytes,
        gradient_bytes=sum(parameter.nbytes for parameter in trained),
        reserved_bytes=account.reserved_bytes + change,
        optimizer_bytes=states,
        operations=operation_rows(ledger),
        fused_operations=fused_names(ledger),
        fourier_bytes=ledger.fourier_bytes if request.precision == "fp32" else 0,
        notes=ledger.notes(),
    )


def _extended(one: StepTrace, two: StepTrace, batch_size: int | None) -> StepTrace:
    """Follow the straight line through one and two samples to a batch."""
    more = (batch_size or 1) - 1
    owners = {
        name: one.owners.get(name, 0) + more * (size - one.owners.get(name, 0))
        for name, size in two.owners.items()
    }
    return replace(
        one,
        batch_size=batch_size or 1,
        owners={name: max(0, size) for name, size in owners.items()},
        peak_bytes=one.peak_bytes + more * (two.peak_bytes - one.peak_bytes),
        saved_bytes=one.saved_bytes + more * (two.saved_bytes - one.saved_bytes),
        reserved_bytes=one.reserved_bytes + more * (two.reserved_bytes - one.reserved_bytes),
    )
