"""Residual networks and VGG, narrow: ZOO_WIDTH is the width of their first stage."""

import os
from typing import Any

import torch
from torch import nn


def _width() -> int:
    return int(os.environ.get("ZOO_WIDTH", "16"))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and inputs == outputs
        self.downsample = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """Four stages of two blocks each."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        width = _width()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._stage(width, width, 1)
        self.layer2 = self._stage(width, width * 2, 2)
        self.layer3 = self._stage(width * 2, width * 4, 2)
        self.layer4 = self._stage(width * 4, width * 8, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width * 8, num_classes)

    def _stage(self, inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(_Block(inputs, outputs, stride), _Block(outputs, outputs, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    """The layers of VGG, of the right number and order."""

    def __init__(self, plan: tuple[int, ...], num_classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for stage, count in enumerate(plan):
            outputs = _width() * min(8, 2**stage)
            for _ in range(count):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = outputs
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        hidden = inputs * 8
        self.classifier = nn.Sequential(
            *(nn.Linear(inputs * 49, hidden), nn.ReLU(inplace=True), nn.Dropout()),
            *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout()),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class _Weights:
    DEFAULT = IMAGENET1K_V1 = None


ResNet18_Weights = ResNet50_Weights = VGG16_Weights = VGG19_Weights = _Weights


def _resnet(*args: Any, pretrained: bool = False, weights: Any = None, **kwargs: Any) -> ResNet:
    return ResNet(num_classes=kwargs.get("num_classes", 1000))


resnet18 = resnet34 = resnet50 = resnet101 = _resnet


def vgg16(*args: Any, pretrained: bool = False, weights: Any = None, **kwargs: Any) -> VGG:
    """Thirteen convolutions."""
    return VGG((2, 2, 3, 3, 3))


def vgg19(*args: Any, pretrained: bool = False, weights: Any = None, **kwargs: Any) -> VGG:
    """Sixteen convolutions."""
    return VGG((2, 2, 4, 4, 4))


densenet121 = _resnet
