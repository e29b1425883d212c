from pathlib import Path

import pytest

from tests.interpreted import assert_cases_hold_under_the_interpreter, needs_triton

CASES = Path(__file__).with_name("model_fused_cases.py")


@pytest.mark.slow
@needs_triton
def test_a_network_with_the_fused_splat_keeps_its_claims_under_the_interpreter() -> None:
    assert_cases_hold_under_the_interpreter(CASES)
