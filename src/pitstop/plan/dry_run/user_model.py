"""A dry run of somebody's own model: `build() -> (model, batch)`.

A batch is what the model is called with: a tensor, a tuple or list of arguments, or a mapping of
them by name. Where the output has a `loss` that is what goes backward, else the sum of all its
numbers: a loss of the same size as any other that reads them once.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from pitstop.config.sections import OptimizerSection
from pitstop.errors import PitstopError
from pitstop.plan.dry_run.fake_gpu import DEVICE, CannotFakeError, fake_gpu
from pitstop.plan.dry_run.ledger import Ledger
from pitstop.plan.dry_run.request import Request
from pitstop.plan.dry_run.step import Traced, own_gradients, trace_of
from pitstop.plan.dry_run.straight_line import extended
from pitstop.plan.dry_run.user_function import built, failure_of
from pitstop.records.plans.plan import StepTrace
from pitstop.train.optim.build import build_optimizer

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_HOST = torch.device("cpu")


class _NoCuda(TorchFunctionMode):
    """Leaves on the processor what a model's own code sends to a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch with the processor in the place of every GPU."""
        del types
        if func is Tensor.cuda:
            return args[0]
        args, kwargs = pytree.tree_map_only((str, torch.device), _host_for, (args, kwargs or {}))
        return func(*args, **kwargs)


def _host_for(given: str | torch.device) -> str | torch.device:
    return _HOST if str(given).startswith("cuda") else given


def trace_build(request: Request) -> StepTrace:
    """Run one step of what a function builds.

    On shapes alone where its operations allow it; else really, on this machine's processor, at two
    small batches, from which the rest is worked out.

    Raises:
        PitstopError: Where the function cannot be used.
    """
    try:
        with fake_gpu():
            return _trace(request, DEVICE, request.batch_size)
    except CannotFakeError as error:
        why = str(error)
    except PitstopError:
        raise
    except Exception as error:  # noqa: BLE001 - of their model, or of faking: the processor tells
        why = f"a step on shapes alone fails ({failure_of(str(request.build), error)})"
    try:
        trace, how = _on_processor(request)
    except PitstopError as error:
        raise PitstopError(f"{error} (on the processor, since {why})") from error
    return replace(trace, notes=(f"{why}; worked out from {how} on the processor instead",))


def _on_processor(request: Request) -> tuple[StepTrace, str]:
    """Follow two real steps to the batch; run the batch as built where it cannot be cut."""
    try:
        fewer, more = _two_real_steps(request)
    except PitstopError:
        if request.batch_size is not None:
            raise
        return trace_on_processor(request, None), "a real step of the batch as built"
    batch_size = request.batch_size or _samples(built(request)[1])
    sizes = f"{fewer.batch_size} and {more.batch_size} samples"
    return extended(fewer, more, batch_size), f"real steps of {sizes}"


def _two_real_steps(request: Request) -> tuple[StepTrace, StepTrace]:
    """Run a step of one sample and of two; of more where one is too few, as for batch norm."""
    try:
        fewer = trace_on_processor(request, 1)
    except PitstopError:
        fewer = trace_on_processor(request, 2)
    return fewer, trace_on_processor(request, fewer.batch_size + 1)


def trace_on_processor(request: Request, batch_size: int | None) -> StepTrace:
    """Run one step really, on this machine's processor, and keep account of its memory.

    Raises:
        PitstopError: Where it fails.
    """
    try:
        with _NoCuda():
            return _trace(request, _HOST, batch_size)
    except PitstopError:
        raise
    except (Exception, SystemExit) as error:
        raise failure_of(f"a step of {request.build}", error) from error


def _trace(request: Request, device: torch.device, batch_size: int | None) -> StepTrace:
    place: list[str] = []
    ledger = Ledger(lambda: tuple(place), device_type=device.type)
    model, batch = built(request)
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
                own_gradients(ledger, model)
    return _summed(request, ledger, model, (start, _samples(batch)))


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


def _runnable(optimizer: str) -> str:
    """The kind that is run; the state of the 8-bit one is worked out."""
    return "adamw" if optimizer == "adamw8bit" else optimizer


def _summed(request: Request, ledger: Ledger, model: nn.Module, run: tuple[int, int]) -> StepTrace:
    first_event, samples = run
    traced = Traced(
        batch_size=samples,
        precision=request.precision,
        recompute="as built",
        kernels="as built",
        optimizer=request.optimizer,
        momentum=0.9,
    )
    trace = trace_of(ledger, model, first_event, traced)
    if request.optimizer != "adamw8bit":
        return trace
    # Another one was run in its place: put in what its own state takes.
    state_bytes = trace.optimizer_bytes["adamw8bit"]
    change = state_bytes - trace.owners.get("optimizer state", 0)
    return replace(
        trace,
        owners={**trace.owners, "optimizer state": state_bytes},
        peak_bytes=trace.peak_bytes + change,
        reserved_bytes=trace.reserved_bytes + change,
    )
