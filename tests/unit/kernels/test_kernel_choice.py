from types import ModuleType

import pytest

from pitstop.errors import ConfigError
from pitstop.kernels import deform_conv, flow_warp, window_attention

OPERATIONS = (deform_conv, flow_warp, window_attention)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_auto_runs_the_reference_while_there_is_nothing_faster(operation: ModuleType) -> None:
    assert operation.dispatch("auto") == operation.dispatch("reference")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fused_version_that_does_not_exist_is_refused_by_name(operation: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"has no fused version; set model\.kernels to"):
        operation.dispatch("fused")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_word_that_names_no_version_is_refused_with_the_choices(operation: ModuleType) -> None:
    with pytest.raises(ConfigError, match="auto, reference, fused"):
        operation.dispatch("fast")
