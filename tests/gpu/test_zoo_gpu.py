"""On a GPU: our scripts in the shapes of public ones behave under the doctor as they do bare."""

import sys

import pytest
import torch

from tests.zoo.generate import generate
from tests.zoo.run import judge
from tests.zoo.runs import Zoo
from tests.zoo.table import OURS, Row, read_table

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS = [row for row in read_table(OURS) if "cuda" in row.devices]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_watched_script_behaves_as_bare(row: Row) -> None:
    zoo = Zoo(device="cuda", public=None, python=sys.executable)
    generate(row.data, row.working_folder(None), python=sys.executable)
    result = judge(zoo, row, runs=("twice", "detach", "default"))
    assert result.bare_code == 0, result.trouble
    assert result.same_code, result.trouble
    assert result.same_output is not False, result.trouble
    assert result.same_losses is not False, result.losses
    if "steps" not in row.open:
        assert result.steps_right, (result.steps, result.true_steps)
