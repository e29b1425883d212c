"""Pictures of pictures."""

from typing import Any

import torch

from .transforms.functional import to_pil_image


def make_grid(tensor: torch.Tensor, nrow: int = 8, **kwargs: Any) -> torch.Tensor:
    """Put pictures side by side."""
    rows = [torch.cat(list(part), dim=-1) for part in tensor.split(nrow) if len(part) == nrow]
    return torch.cat(rows, dim=-2) if rows else torch.cat(list(tensor), dim=-1)


def save_image(tensor: torch.Tensor, path: Any, nrow: int = 8, **kwargs: Any) -> None:
    """Write one picture, or several side by side."""
    picture = make_grid(tensor, nrow) if tensor.dim() == 4 else tensor
    to_pil_image(picture.detach().cpu().float().clamp(0, 1)).save(path)
