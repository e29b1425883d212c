"""A GPU that is not there: tensors on it have shapes, strides and types, and no numbers.

What lies on the host stays real, since a step looks at it (draws, masks, calibrations); what is
sent to the device becomes fake. Only for a process of its own: it changes torch for good.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.nn import functional
from torch.optim.optimizer import _foreach_supported_types

from pitstop.errors import PitstopError
from pitstop.plan.dry_run.arguments import tensors_in
from pitstop.plan.dry_run.inside import launch_nothing
from pitstop.plan.dry_run.no_gpu import pretend_cuda
from pitstop.plan.dry_run.short_ways import ShortWays

DEVICE: Final = torch.device("cuda", 0)

_CAPABILITY: Final = (9, 0)
"""Of the GPUs that time is planned for the newest: what it has not, no other has."""
_PROPERTIES: Final = SimpleNamespace(
    name="NVIDIA H200",
    major=_CAPABILITY[0],
    minor=_CAPABILITY[1],
    total_memory=140 * 2**30,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=48 * 1024,
    shared_memory_per_block_optin=227 * 1024,
    shared_memory_per_multiprocessor=228 * 1024,
    L2_cache_size=50 * 2**20,
    is_integrated=0,
    is_multi_gpu_board=0,
    warp_size=32,
)
"""Of the same one: what kernels choose the size of their blocks by, and what a model may ask for
beside that. Clocks and serial numbers are left out."""
_NO_DRIVER: Final = "Found no NVIDIA driver"
_FLASH_DTYPES: Final = frozenset({torch.float16, torch.bfloat16})


class CannotFakeError(PitstopError):
    """An operation that has to see numbers, or has no rule for shapes alone."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"{operation} cannot be planned: {reason}")
        self.operation = operation
        self.reason = reason


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Let `DEVICE` be a GPU of the newest kind inside this context, for memory alone.

    Raises:
        CannotFakeError: Where an operation needs numbers.
    """
    pretend_cuda()
    launch_nothing()
    _answer_for_the_gpu()
    # Else torch takes the loop over single tensors for what it updates, which no GPU would.
    if FakeTensor not in _foreach_supported_types:
        _foreach_supported_types.append(FakeTensor)
    plain_attention, plain_to = functional.scaled_dot_product_attention, nn.Module.to
    plain_generator = torch.Generator
    functional.scaled_dot_product_attention = _attend
    nn.Module.to = _moving_once(plain_to)
    torch.Generator = _HostGenerator
    try:
        with _cannot_fake_named(), _HostStaysReal():
            yield
    finally:
        functional.scaled_dot_product_attention = plain_attention
        nn.Module.to = plain_to
        torch.Generator = plain_generator


@contextmanager
def _cannot_fake_named() -> Iterator[None]:
    """Name the operation that needs what is not there, in whichever way torch says so."""
    try:
        yield
    except DataDependentOutputException as error:
        raise CannotFakeError(str(error.func), "it reads numbers back from the device") from error
    except DynamicOutputShapeException as error:
        raise CannotFakeError(
            str(error.func), "the shape of its result depends on numbers"
        ) from error
    except UnsupportedOperatorException as error:
        raise CannotFakeError(str(error.func), "it has no rule for shapes alone") from error
    except NotImplementedError as error:
        # Sparse tensors end here: torch dispatches them past what fakes tensors.
        named = re.search(r"'(\w+::\w+)'", str(error))
        operation = "an operation" if named is None else named[1]
        raise CannotFakeError(operation, "it has no version for shapes alone") from error
    except RuntimeError as error:
        if _NO_DRIVER not in str(error):
            raise
        # The same tensors, in a build with CUDA: it has a version, and that one asks the driver.
        raise CannotFakeError("an operation", "it goes to a GPU, and there is none") from error


class _HostGenerator(torch.Generator):
    """Of the host whatever device is named: a GPU that is not there has none, and draws nothing."""

    def __new__(cls, device: torch.device | str = "cpu") -> Self:  # noqa: ARG004 - the host's
        """Make one as `torch.Generator` does."""
        return super().__new__(cls)


class _HostStaysReal(FakeTensorMode):
    """Fakes what touches the device; runs what lies on the host."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._short_ways = ShortWays(self, DEVICE)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare each operation the way round torch's compiler: nothing is compiled here."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if not _on_device(args, given):
            return _on_host(func, args, given)
        if func is torch.ops.aten._local_scalar_dense.default:
            # A loss that is logged, a flag that says "finite": any number will do for shapes.
            return torch.zeros((), dtype=args[0].dtype, device="cpu").item()
        if _changes_only(func):
            return args[0] if len(func._schema.returns) == 1 else None
        long_way = partial(super().__torch_dispatch__, func, types, args, given)
        return self._short_ways.run(func, args, given, long_way)


def _on_device(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == DEVICE.type:
        return True
    return any(isinstance(tensor, FakeTensor) for tensor in tensors_in((args, kwargs)))


def _on_host(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    made = func(*args, **kwargs)
    if func is not torch.ops.aten.rand.default:
        return made
    # A branch that is dropped at random takes no memory: the step to plan for keeps all of them.
    # Below 1, as every number that is drawn: somebody may look it up in a table.
    return made.fill_(1 - torch.finfo(made.dtype).eps)


def _changes_only(func: Any) -> bool:
    """Whether an operation over many tensors changes them in place and makes none."""
    name = func._schema.name
    updates = ("aten::_fused_", "aten::_amp_foreach", "aten::_amp_update", "aten::_foreach")
    return name.startswith(updates) and name.endswith("_")


def _answer_for_the_gpu() -> None:
    """Say of the GPU what models and torch ask before they choose a way."""
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True  # noqa: ARG005
    torch.cuda.get_device_capability = lambda device=None: _CAPABILITY  # noqa: ARG005
    torch.cuda.get_device_properties = lambda device=None: _PROPERTIES  # noqa: ARG005


def _moving_once(move: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Leave modules alone that are where they should be already, and keep shared weights shared.

    Torch exchanges fake parameters whole, wherever they go, and refuses while a graph holds them:
    a frozen network that is sent to its device in every forward pass is in that state. A real
    parameter that becomes fake is made anew in each module that has it.
    """

    def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        parse = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue]
        device, dtype, _, layout = parse(*args, **kwargs)
        tensors = [*module.parameters(), *module.buffers()]
        is_there = layout is None and all(
            (device is None or tensor.device.type == torch.device(device).type)
            and (dtype is None or not tensor.is_floating_point() or tensor.dtype == dtype)
            for tensor in tensors
        )
        if is_there:
            return module
        shared = _shared_parameters(module)
        move(module, *args, **kwargs)
        for (first, name), *others in shared:
            for other, other_name in others:
                other._parameters[other_name] = first._parameters[name]
        return module

    return to


def _shared_parameters(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """List the places of each parameter that several modules have."""
    places: dict[Tensor, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                places.setdefault(parameter, []).append((part, name))
    return [found for found in places.values() if len(found) > 1]


def _attend(  # noqa: PLR0913, PLR0917 - torch's own signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """Choose the version of attention that a GPU would; torch without CUDA cannot."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (part.to(dtype) for part in (query, key, value))
        attn_mask = _masked_in(attn_mask, dtype)
    if attn_mask is None and query.dtype in _FLASH_DTYPES:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa:  # only flash attention lets heads share keys; elsewhere torch repeats them
        times = query.shape[-3] // key.shape[-3]
        key, value = (part.repeat_interleave(times, dim=-3) for part in (key, value))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    bias = _masked_in(attn_mask, query.dtype)
    if bias is not None:
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
    wants_gradient = torch.is_grad_enabled() and any(
        part.requires_grad for part in (query, key, value)
    )
    return efficient(query, key, value, bias, wants_gradient, dropout_p, is_causal, scale=scale)[0]


def _masked_in(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return mask if mask is None or mask.dtype == dtype else mask.to(dtype)
