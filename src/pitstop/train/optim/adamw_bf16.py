"""AdamW that keeps its two averages in bf16, four bytes a parameter instead of eight.

torch's own AdamW cannot hold them so: on a processor every form of it refuses averages of another
type than the weights. Rounding to the nearest bf16 would not do either. The second average changes
by about one part in a thousand a step and bf16 resolves one in 256, so after a few hundred steps
every change would be rounded away and the average would stand still. Here the rounding is random
and right on average: up as often as the dropped bits say. The dice are seeded by the count of
updates, so a resumed run throws the same ones, and no other random number is touched.
"""
# pyright: reportPrivateUsage=false

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.optim import Optimizer

from pitstop.train.optim import foreach

CHUNK_ELEMENTS: Final = 2**22
"""Elements updated together: enough to fill a GPU, at 20 bytes of scratch each."""

# bfloat16 is the upper half of float32.
_DROPPED_BITS: Final = 16
# More than there are chunks: no two pairs of update and chunk draw the same random numbers.
_SEED_STRIDE: Final = 1_000_003


class AdamWBf16(Optimizer):
    """AdamW with bf16 averages; arithmetic in fp32, a few kernels for all parameters together.

    Takes ``found_inf`` and ``grad_scale`` on the device as torch's fused optimizers do.
    """

    _step_supports_amp_scaling: Final = True

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        # Memory that is going to be needed is taken before the first step, where a plan expects it.
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param] = {
                    "step": torch.zeros((), dtype=torch.float32, device=param.device),
                    "calls": 0,
                    "exp_avg": torch.zeros_like(param, dtype=torch.bfloat16),
                    "exp_avg_sq": torch.zeros_like(param, dtype=torch.bfloat16),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            ready = [param for param in group["params"] if param.grad is not None]
            for place, chunk in enumerate(_chunks(ready, self.state)):
                self._update(group, chunk, place)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; torch casts averages to the weights' type, and here they go back."""
        super().load_state_dict(state_dict)
        for param, state in self.state.items():
            state["step"] = state["step"].to(param.device)
            state["calls"] = int(state["calls"])
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].to(torch.bfloat16)

    def _update(self, group: dict[str, Any], params: list[Tensor], place: int) -> None:
        states = [self.state[param] for param in params]
        steps = [state["step"] for state in states]
        averages = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
        skip = _flag(getattr(self, "found_inf", None), params[0].device)
        # A skipped update is one without gradient or decay, whose averages keep all they have.
        grad = torch.where(skip, 0.0, self._gradient(params))
        weight, first, second = (_gather(tensors) for tensors in (params, *averages))
        foreach.copy(steps, [steps[0] + ~skip] * len(steps))
        _advance(weight, _Moments(first, second, grad), group, step=steps[0], skip=skip)
        generator = torch.Generator(device=weight.device)
        generator.manual_seed(states[0]["calls"] * _SEED_STRIDE + place)
        for tensors, flat in zip(averages, (first, second), strict=True):
            round_to_bf16_(flat, generator)
            _scatter(flat, tensors)
        _scatter(weight, params)
        for state in states:
            state["calls"] += 1

    def _gradient(self, params: list[Tensor]) -> Tensor:
        flat = _gather([param.grad for param in params if param.grad is not None])
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)
        return flat if grad_scale is None else flat.div_(grad_scale)


class _Moments(NamedTuple):
    """Flat fp32 copies of the averages, and the gradient they take in."""

    first: Tensor
    second: Tensor
    grad: Tensor


def _advance(
    weight: Tensor, moments: _Moments, group: dict[str, Any], *, step: Tensor, skip: Tensor
) -> None:
    """Do AdamW's arithmetic in place; with `skip` set, change nothing."""
    beta1, beta2 = group["betas"]
    first, second, grad = moments
    first.mul_(torch.where(skip, 1.0, beta1)).add_(grad, alpha=1 - beta1)
    second.mul_(torch.where(skip, 1.0, beta2)).addcmul_(grad, grad, value=1 - beta2)
    spread = (second / _bias_correction(beta2, step)).sqrt_().add_(group["eps"])
    change = (first / spread).mul_(group["lr"] / _bias_correction(beta1, step))
    weight.mul_(torch.where(skip, 1.0, 1 - group["lr"] * group["weight_decay"]))
    # Before the first step both corrections are zero, and so the quotient is not a number.
    weight.sub_(torch.where(skip, 0.0, change))


def round_to_bf16_(values: Tensor, generator: torch.Generator) -> None:
    """Round fp32 values in place to a neighbour that bf16 can hold, the nearer the likelier."""
    bits = values.view(torch.int32)
    dice = torch.randint(
        1 << _DROPPED_BITS, bits.shape, generator=generator, dtype=torch.int32, device=bits.device
    )
    bits.add_(dice).bitwise_and_(-(1 << _DROPPED_BITS))


def _bias_correction(beta: float, step: Tensor) -> Tensor:
    # 1 - beta ** step would lose digits in fp32 where beta is near one.
    return -torch.expm1(step * math.log(beta)) if beta else torch.ones_like(step)


def _flag(found_inf: Tensor | None, device: torch.device) -> Tensor:
    if found_inf is None:
        return torch.zeros((), dtype=torch.bool, device=device)
    return found_inf.reshape(()) != 0


def _chunks(
    params: Sequence[Tensor], state: Mapping[Tensor, dict[str, Any]]
) -> Iterator[list[Tensor]]:
    """Deal parameters into lists alike in device, type and count of updates, none too large."""
    alike: dict[tuple[torch.device, torch.dtype, int], list[Tensor]] = {}
    for param in params:
        key = (param.device, param.dtype, state[param]["calls"])
        alike.setdefault(key, []).append(param)
    for same in alike.values():
        chunk: list[Tensor] = []
        size = 0
        for param in same:
            if chunk and size + param.numel() > CHUNK_ELEMENTS:
                yield chunk
                chunk, size = [], 0
            chunk.append(param)
            size += param.numel()
        yield chunk


def _gather(tensors: Sequence[Tensor]) -> Tensor:
    """Copy tensors one after the other into fp32."""
    # One call for all, in torch since its first distributed versions: with a view a tensor made in
    # Python, the host took forty times as long as the GPU for an update of 1,500 tensors.
    return _flatten_dense_tensors(tensors).float()


def _scatter(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy values back to where `_gather` took them from."""
    # Cast first: copies between types go tensor by tensor, those of one type go all at once.
    cast = flat.to(tensors[0].dtype)
    foreach.copy(tensors, _unflatten_dense_tensors(cast, tensors))
