"""Channels-last: the layout changes, the values do not, and convolutions hand it on."""

import pytest
import torch
from torch import nn

from pitstop.errors import ConfigError
from pitstop.train.model.memory_format import use_channels_last

LAST = torch.channels_last


def build() -> nn.Sequential:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))


def test_weights_are_laid_out_anew_and_keep_their_values() -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert use_channels_last(model).num_weights == 2
    assert model[0].weight.is_contiguous(memory_format=LAST)  # type: ignore[union-attr]
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_pictures_go_through_in_the_layout_with_the_same_result() -> None:
    model = build()
    pictures = torch.randn(2, 3, 16, 16)
    expected = model(pictures)
    use_channels_last(model)
    output = model(pictures.contiguous(memory_format=LAST))
    assert output.is_contiguous(memory_format=LAST)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Conv2d(1, 1, 1)])
def test_a_model_it_would_not_change_is_an_error(model: nn.Module) -> None:
    with pytest.raises(ConfigError, match="no effect"):
        use_channels_last(model)


def test_a_second_time_is_an_error_too() -> None:
    model = build()
    use_channels_last(model)
    with pytest.raises(ConfigError, match="no effect"):
        use_channels_last(model)
