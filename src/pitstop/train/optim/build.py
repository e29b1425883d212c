"""The optimizer that a configuration asks for, and what it really became.

`build_optimizer` works on any model and needs nothing else of pitstop. What it decided is read off
the optimizer itself by `optimizer_facts`: which form runs, whether it takes the flag of non-finite
gradients on the device, and how many bytes its state has.
"""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pitstop.config.sections import OptimizerSection
from pitstop.errors import ConfigError, MissingPackage
from pitstop.train.optim.adamw_bf16 import AdamWBf16
from pitstop.train.optim.local_part import is_divided, local_part

Parameters: TypeAlias = nn.Module | Iterable[tuple[str, nn.Parameter]]
"""A model, or parameters with their names as `named_parameters()` gives them."""

_LOWBIT_LIBRARIES: Final = ("bitsandbytes", "torchao")
# As both libraries have it: a scale for each block of 8-bit values, a table of 256 float32 that
# they stand for, and parameters smaller than this kept in 32 bits.
_LOWBIT_BLOCK: Final = 256
_LOWBIT_TABLE_BYTES: Final = 256 * 4
_LOWBIT_SMALLEST: Final = 4096
# The count of steps, a float32 for each parameter.
_STEP_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """What an optimizer is, read from the object itself rather than from its configuration."""

    kind: str
    """As in the configuration."""
    source: str
    """Whose code updates the weights, with its version."""
    fused: bool
    """Whether torch's one kernel for the whole update runs."""
    takes_found_inf: bool
    """Whether it leaves a step out by a flag on the device; otherwise each update costs a sync."""
    num_parameters: int
    """Elements that are updated."""
    predicted_state_bytes: int
    """What the state will take, from the parameters' sizes."""
    state_bytes: int | None
    """What the state takes; None until there is one, for most kinds after the first step."""


def build_optimizer(
    parameters: Parameters,
    section: OptimizerSection,
    *,
    lr: float | None = None,
    device_type: str | None = None,
) -> Optimizer:
    """Make the optimizer of a section for all parameters that want a gradient.

    Args:
        parameters: The model, or its `named_parameters()`; already on their device.
        section: Kind, rates and decay. Decay applies to every parameter, biases and norms too.
        lr: Peak rate, when it is not the section's own, as `schedule.scaled_lr` gives it.
        device_type: Such as "cuda"; None to look at the parameters.

    Raises:
        ConfigError: When a setting cannot be honoured or would do nothing.
        MissingPackage: When the 8-bit kind has no library to run on.
    """
    named = _trainable(parameters)
    peak = section.lr if lr is None else lr
    groups = _groups(named, section, peak)
    device = device_type or named[0][1].device.type
    match section.kind:
        case "sgd":
            # torch 2.13 has no fused form of it for weights that are divided between ranks.
            lacks = "weights are divided between ranks" if is_divided(named[0][1]) else None
            fused = _wants_fused(SGD, section, device, lacks)
            return _build_sgd(groups, section, fused=fused)
        case "adamw" | "adam":
            rule = AdamW if section.kind == "adamw" else Adam
            # None and not False: False would also switch off the many-tensor form.
            fused = _wants_fused(rule, section, device) or None
            return rule(groups, fused=fused, **_adam_settings(section, peak))
        case "adamw8bit":
            _refuse_fused(section)
            return _lowbit_rule()(groups, **_adam_settings(section, peak))
        case "adamw_bf16":
            _refuse_fused(section)
            return AdamWBf16(groups, **_adam_settings(section, peak))


def optimizer_facts(optimizer: Optimizer) -> OptimizerFacts:
    """Read off an optimizer what it is; after the first step the bytes are measured ones."""
    params = list(_params(optimizer))
    library = _library(optimizer)
    return OptimizerFacts(
        kind=_kind(optimizer),
        source=f"{library} {version(library)}",
        fused=any(bool(group.get("fused")) for group in optimizer.param_groups),
        takes_found_inf=bool(getattr(optimizer, "_step_supports_amp_scaling", False)),
        num_parameters=sum(param.numel() for param in params),
        predicted_state_bytes=predicted_state_bytes(optimizer),
        state_bytes=state_bytes(optimizer) if optimizer.state or not params else None,
    )


def state_bytes(optimizer: Optimizer) -> int:
    """Count the bytes of all tensors in the state, each piece of memory once."""
    sizes: dict[tuple[torch.device, int], int] = {}
    for state in optimizer.state.values():
        for value in state.values():
            for tensor in _plain_tensors(value):
                storage = tensor.untyped_storage()
                sizes[tensor.device, storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def predicted_state_bytes(optimizer: Optimizer) -> int:
    """Work out what the state takes once every parameter has been updated."""
    momentum = max((group.get("momentum", 0.0) for group in optimizer.param_groups), default=0.0)
    held = [local_part(param.detach()) for param in _params(optimizer)]
    return planned_state_bytes(
        _kind(optimizer), held, momentum=momentum, library=_library(optimizer)
    )


def planned_state_bytes(
    kind: str, params: Sequence[Tensor], *, momentum: float, library: str = _LOWBIT_LIBRARIES[0]
) -> int:
    """Work out what the state of an optimizer takes, from the sizes of what it updates.

    Args:
        kind: As in the configuration.
        params: What is updated.
        momentum: Of sgd; without it there is no state.
        library: Whose 8-bit optimizer it is.
    """
    match kind:
        case "sgd":
            return sum(param.nbytes for param in params) if momentum else 0
        case "adamw_bf16":
            return sum(4 * param.numel() + _STEP_BYTES for param in params)
        case "adamw8bit":
            return _lowbit_bytes(params, library=library)
        case _:
            return sum(2 * param.nbytes + _STEP_BYTES for param in params)


def _trainable(parameters: Parameters) -> list[tuple[str, nn.Parameter]]:
    named = parameters.named_parameters() if isinstance(parameters, nn.Module) else parameters
    wanted = [(name, param) for name, param in named if param.requires_grad]
    if not wanted:
        raise ConfigError("no parameter wants a gradient, so there is nothing to optimize")
    return wanted


def _groups(
    named: list[tuple[str, nn.Parameter]], section: OptimizerSection, peak_lr: float
) -> list[dict[str, Any]]:
    """Put parameters of one rate into one group, in the order in which rates first appear."""
    multipliers = dict(section.lr_multipliers)
    idle = [part for part in multipliers if not any(part in name for name, _ in named)]
    if idle:
        raise ConfigError(
            f"optimizer.lr_multipliers has no effect for {', '.join(idle)}: no trainable "
            f"parameter's name contains it (one is called {named[0][0]})"
        )
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, param in named:
        # Of several parts in a name the longest says the most.
        part = max((part for part in multipliers if part in name), key=len, default=None)
        by_factor.setdefault(1.0 if part is None else multipliers[part], []).append(param)
    return [{"params": params, "lr": peak_lr * factor} for factor, params in by_factor.items()]


def _adam_settings(section: OptimizerSection, peak_lr: float) -> dict[str, Any]:
    return {
        "lr": peak_lr,
        "betas": section.betas,
        "eps": section.eps,
        "weight_decay": section.weight_decay,
    }


def _build_sgd(groups: list[dict[str, Any]], section: OptimizerSection, *, fused: bool) -> SGD:
    optimizer = SGD(
        groups,
        lr=section.lr,
        momentum=section.momentum,
        nesterov=section.nesterov,
        weight_decay=section.weight_decay,
        fused=fused or None,
    )
    if fused and section.momentum:
        # torch makes the buffer of unset memory and trusts the first step to fill it. A first step
        # that is left out for a non-finite gradient does not, and the next one would add noise.
        for param in _params(optimizer):
            optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)
    return optimizer


def _wants_fused(
    rule: type[Optimizer], section: OptimizerSection, device_type: str, lacks: str | None = None
) -> bool:
    if section.fused == "off":
        return False
    problem = lacks or fused_problem(rule, device_type)
    if problem and section.fused == "on":
        raise ConfigError(
            f"optimizer.fused is on, but {section.kind} has no fused form on {device_type} here "
            f"({problem}); set it to auto"
        )
    return problem is None


def _refuse_fused(section: OptimizerSection) -> None:
    if section.fused == "on":
        raise ConfigError(
            f"optimizer.fused is on, but {section.kind} has one form only; set it to auto"
        )


@lru_cache
def fused_problem(rule: type[Optimizer], device_type: str) -> str | None:
    """Say why torch's fused form does not run on a device; None if it does, by trying it."""
    try:
        param = nn.Parameter(torch.ones(1, device=device_type))
        param.grad = torch.ones_like(param)
        settings: dict[str, Any] = {"lr": 0.5, "fused": True}
        rule([param], **settings).step()
    except (RuntimeError, NotImplementedError, AssertionError, TypeError, ValueError) as error:
        return str(error).partition("\n")[0]
    return None


def _lowbit_rule() -> type[Optimizer]:
    for library in _LOWBIT_LIBRARIES:
        try:
            return importlib.import_module(f"{library}.optim").AdamW8bit
        except ImportError:
            continue
    raise MissingPackage(
        _LOWBIT_LIBRARIES[0],
        purpose="optimizer.kind adamw8bit",
        choices=" or ".join(_LOWBIT_LIBRARIES),
    )


def _lowbit_bytes(params: Sequence[Tensor], *, library: str) -> int:
    """Two averages of a byte an element and a scale a block; small tensors stay in fp32."""
    own_tables = library == "torchao"  # the other one shares two tables between all parameters
    total = 0 if own_tables else 2 * _LOWBIT_TABLE_BYTES
    for param in params:
        size = param.numel()
        large = size >= _LOWBIT_SMALLEST and not (own_tables and size % _LOWBIT_BLOCK)
        one = size + 4 * -(-size // _LOWBIT_BLOCK) if large else 4 * size
        tables = _LOWBIT_TABLE_BYTES if own_tables and large else 0
        total += 2 * (one + tables) + (_STEP_BYTES if own_tables else 0)
    return total


def _kind(optimizer: Optimizer) -> str:
    if isinstance(optimizer, AdamWBf16):
        return "adamw_bf16"
    if _library(optimizer) in _LOWBIT_LIBRARIES:
        return "adamw8bit"
    # AdamW is an Adam to torch, so the narrower one comes first.
    kinds = {AdamW: "adamw", Adam: "adam", SGD: "sgd"}
    found = (kind for rule, kind in kinds.items() if isinstance(optimizer, rule))
    return next(found, type(optimizer).__name__)


def _library(optimizer: Optimizer) -> str:
    return type(optimizer).__module__.partition(".")[0]


def _params(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _plain_tensors(value: object) -> Iterator[Tensor]:
    """The tensors that hold the bytes: a quantised one is made of several."""
    if not isinstance(value, Tensor):
        return
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        yield value
        return
    names, _ = flatten()
    for name in names:
        yield from _plain_tensors(getattr(value, name))
