"""A stand-in for timm's create_model: a residual network with a classifier on top."""

from typing import Any, ClassVar

from torch import nn
from torchvision.models import ResNet


class _Model(ResNet):
    default_cfg: ClassVar[Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.fc


def create_model(name: str, pretrained: bool = False, num_classes: int = 1000, **_: Any) -> _Model:
    """Make a model, whatever its name."""
    return _Model(num_classes)
