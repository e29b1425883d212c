"""From accumulated gradients to an update, all on the device: scaling, checking, clipping.

Nothing here reads a device value. Whether gradients are finite is a flag on the device that a
fused optimizer takes as it is.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pitstop.config.sections import ClipSection
from pitstop.train.optim import foreach


def gradients_of(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """List the gradients that exist."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


Sum = Callable[[Tensor], Tensor]
"""Adds a value over the ranks that have parts of the gradients, in place."""


def scale_and_check(
    gradients: list[Tensor], factor: Tensor, over_parts: Sum | None = None
) -> Tensor:
    """Multiply all gradients by `factor` in one pass, and say whether one is not finite.

    Args:
        gradients: Of any floating dtypes.
        factor: A float64 scalar on the device, so that float64 gradients stay exact.
        over_parts: Where each rank has parts of the gradients: adds over all of these ranks.

    Returns:
        A float32 scalar on the device: 1 if any gradient is NaN or infinite, else 0.
    """
    found_inf = torch.zeros((), dtype=torch.float32, device=factor.device)
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for dtype, group in by_dtype.items():
        if dtype == torch.float64:  # the fused pass takes its factor in float32 only
            foreach.multiply(group, factor)
            found_inf += ~torch.isfinite(total_norm(group))
        else:
            foreach.multiply_and_check(group, factor.float(), found_inf)
    if over_parts is not None:
        found_inf = over_parts(found_inf)
    return found_inf.clamp(max=1.0)


class Clipper:
    """Keeps the gradient norm under a limit that is fixed or follows recent norms.

    Args:
        section: Kind and limits.
        device: Where gradients live; recent norms are kept there too.
    """

    def __init__(self, section: ClipSection, device: torch.device) -> None:
        self._section = section
        self._norms = torch.zeros(section.window, dtype=torch.float32, device=device)
        self._seen = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped at all; if not, nobody needs their norm but the log."""
        return self._section.kind != "none"

    def limit(self) -> Tensor:
        """The present limit, on the device."""
        section = self._section
        fixed = torch.full_like(self._norms[0], section.norm)
        if section.kind != "adaptive":
            return fixed
        usual = torch.quantile(self._norms, section.quantile) * section.factor
        adaptive = usual.clamp(section.min_norm, section.max_norm)
        return torch.where(self._seen >= section.window, adaptive, fixed)

    def clip(self, gradients: list[Tensor], over_parts: Sum | None = None) -> Tensor:
        """Shrink all gradients alike if their norm is above the limit; give the norm before."""
        norm = total_norm(gradients, over_parts)
        shrink = (self.limit() / (norm + 1e-6)).clamp(max=1.0)
        foreach.multiply(gradients, shrink)
        if self._section.kind == "adaptive":
            self._remember(norm)
        return norm

    def _remember(self, norm: Tensor) -> None:
        """Keep a norm among the recent ones, unless it is not finite."""
        finite = torch.isfinite(norm)
        place = (self._seen % len(self._norms)).reshape(1)
        kept = torch.where(finite, norm.float(), self._norms.gather(0, place)[0])
        self._norms.scatter_(0, place, kept.reshape(1))
        self._seen += finite

    def state_dict(self) -> dict[str, Tensor]:
        """Give what a resumed run needs."""
        return {"norms": self._norms, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where another run stopped."""
        self._norms.copy_(state["norms"])
        self._seen.copy_(state["seen"])


def total_norm(gradients: list[Tensor], over_parts: Sum | None = None) -> Tensor:
    """Euclidean norm over all gradients together, on the device."""
    # At least float32: the squares of a half-precision norm overflow.
    norms = [
        norm.to(torch.promote_types(norm.dtype, torch.float32)) for norm in foreach.norms(gradients)
    ]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return norm if over_parts is None else over_parts(norm.square()).sqrt()
