"""Precision as one object: autocast, the loss scale of fp16, and what tf32 means here.

The loop never asks which precision it runs in. Under fp32, tf32 and bf16 scaling is a no-op; under
fp16 the scale, its growth and the overflow flag all stay on the device.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal

import torch
from torch import Tensor

from pitstop.config.sections import ScalerSection
from pitstop.train.optim import foreach

PrecisionKind = Literal["fp32", "tf32", "bf16", "fp16"]

_AUTOCAST_DTYPES: Final[dict[str, torch.dtype]] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class LossScale:
    """The dynamic loss scale of fp16, updated on the device.

    Gradients below 6e-8 vanish in fp16, so the loss is multiplied before backward and gradients
    are divided after. An overflow shrinks the scale; a long run without one lets it grow.
    """

    def __init__(self, section: ScalerSection, device: torch.device) -> None:
        self._section = section
        self.scale = torch.full((), section.start, dtype=torch.float32, device=device)
        self._steps_without_overflow = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: Tensor) -> None:
        """Shrink after an overflow, grow after enough steps without one; no host sync."""
        section = self._section
        foreach.update_loss_scale(
            self.scale,
            self._steps_without_overflow,
            found_inf,
            growth=section.growth,
            backoff=section.backoff,
            growth_every=section.growth_every_steps,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Give what a resumed run needs."""
        return {"scale": self.scale, "steps_without_overflow": self._steps_without_overflow}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where another run stopped."""
        self.scale.copy_(state["scale"])
        self._steps_without_overflow.copy_(state["steps_without_overflow"])


class Precision:
    """The arithmetic of forward and backward.

    Args:
        kind: fp32, tf32, bf16 or fp16; weights and optimizer stay fp32 in all of them.
        device: Where the model lives.
        scaler: Loss scale settings, used under fp16 only.
    """

    def __init__(
        self, kind: PrecisionKind, device: torch.device, scaler: ScalerSection | None = None
    ) -> None:
        self.kind = kind
        self._device = device
        self._dtype = _AUTOCAST_DTYPES.get(kind)
        self.loss_scale = LossScale(scaler or ScalerSection(), device) if kind == "fp16" else None

    def apply_to_process(self) -> None:
        """Set what torch keeps for the whole process: whether fp32 products may use tf32.

        bf16 and fp16 allow tf32 for the few products that stay fp32; fp32 means fp32.
        """
        allowed = self.kind != "fp32"
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed

    def autocast(self) -> AbstractContextManager[object]:
        """Compute products in the precision's own dtype inside this context."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """Multiply a loss by the scale, where there is one."""
        return loss if self.loss_scale is None else loss * self.loss_scale.scale

    def unscale_factor(self, factor: Tensor) -> Tensor:
        """Join a factor on the gradients with the division by the scale: one pass does both."""
        return factor if self.loss_scale is None else factor / self.loss_scale.scale

    def update(self, found_inf: Tensor) -> None:
        """Tell the scale how the step went."""
        if self.loss_scale is not None:
            self.loss_scale.update(found_inf)

    def state_dict(self) -> dict[str, Tensor]:
        """Give what a resumed run needs; empty without a scale."""
        return {} if self.loss_scale is None else self.loss_scale.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where another run stopped."""
        if self.loss_scale is not None and state:
            self.loss_scale.load_state_dict(state)
