"""Operations are led back to the lines and modules that asked for them, in backward too."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pitstop_probe.deep.origins import common_name
from pitstop_probe.deep.work_profile import WorkProfile


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.layer(x))  # the line of Gate


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(Gate() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for gate in self.gates:
            x = gate(x)
        return x.cumsum(0)  # the line of Net


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return 1 + next(number for number, line in enumerate(lines) if line.endswith(text))


@pytest.mark.parametrize(
    ("operation", "line", "module"),
    [
        ("aten::addmm", "# the line of Gate", "gates.*.layer"),
        ("aten::mm", "# the line of Gate", "gates.*.layer"),
        ("aten::sigmoid_backward", "# the line of Gate", "gates.*"),
        ("aten::cumsum", "# the line of Net", None),
    ],
)
def test_an_operation_is_led_back_to_its_line(
    operation: str, line: str, module: str | None
) -> None:
    model = Net()
    profile = WorkProfile(torch, [model])
    profile.on()
    try:
        model(torch.ones(4, 8)).sum().backward()
    finally:
        profile.off()
    found = {each["operation"]: each for each in profile.values(7)["sources"]}
    assert found[operation]["file"] == __file__
    assert found[operation]["line"] == line_of(line)
    if module is not None:
        assert found[operation]["module"].startswith(module.split(".")[0])
        assert found[operation]["share"] == 1.0


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"stage1.blocks.0.mlp"}, "stage1.blocks.0.mlp"),
        ({"stage1.blocks.0.mlp", "stage7.blocks.11.mlp"}, "stage*.blocks.*.mlp"),
        ({"stage1.mlp.a", "stage2.mlp.b"}, "stage*.mlp"),
        ({"encoder.a", "decoder.b"}, None),
        (set(), None),
    ],
)
def test_many_modules_have_one_name(names: set[str], expected: str | None) -> None:
    assert common_name(names) == expected
