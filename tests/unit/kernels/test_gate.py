from pathlib import Path

import pytest
import torch

from pitstop.errors import ConfigError
from pitstop.kernels.gate import FORMULAS, dispatch, gate_reference
from pitstop.workloads.deblur.model.blocks import GatedMLP
from tests.interpreted import assert_cases_hold_under_the_interpreter, needs_triton

torch.set_num_threads(1)


@pytest.mark.slow
@needs_triton
def test_the_fused_gate_keeps_its_claims_under_the_interpreter() -> None:
    assert_cases_hold_under_the_interpreter(Path(__file__).parent / "gate_cases.py")


def test_one_half_gates_the_other() -> None:
    joint = torch.randn(3, 8)
    want = torch.nn.functional.gelu(joint[:, :4]) * joint[:, 4:]
    assert torch.equal(gate_reference(joint), want)
    assert torch.equal(dispatch("auto")(joint), want)


def test_a_word_that_names_no_version_is_refused() -> None:
    assert dispatch("reference") is gate_reference
    with pytest.raises(ConfigError, match="auto, reference, fused"):
        dispatch("fast")  # pyright: ignore[reportArgumentType]


def test_a_layer_keeps_the_names_of_its_weights() -> None:
    names = set(GatedMLP(4, 8, 4, kernels="fused").state_dict())
    assert names == {
        f"{part}.{kind}" for part in ("fc11", "fc12", "fc2") for kind in ("weight", "bias")
    }


def test_formulas_count_what_is_read_and_written_once() -> None:
    joint = torch.empty(20, 192 * 2, dtype=torch.bfloat16, device="meta")
    out = torch.empty(20, 192, dtype=torch.bfloat16, device="meta")
    sizes = {"tokens": 20, "channels": 192}
    assert FORMULAS["gate"].num_bytes(**sizes, itemsize=2) == joint.nbytes + out.nbytes
    backward = FORMULAS["gate_backward"]
    assert backward.num_bytes(**sizes, itemsize=2) == 2 * joint.nbytes + out.nbytes
    assert backward.flops(**sizes) == 2 * FORMULAS["gate"].flops(**sizes)
