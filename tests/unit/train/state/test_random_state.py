import random
from io import BytesIO

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pitstop.train.state.random_state import capture_random_state, restore_random_state
from pitstop.train.state.snapshot import snapshot


def draw() -> list[float]:
    """Draw from every global generator, in ways that leave half of a pair behind."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),  # noqa: NPY002 - the global one is what is saved
        float(np.random.standard_normal()),  # noqa: NPY002
        torch.rand(()).item(),
        torch.randn(()).item(),
    ]


@given(st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_draws_go_on_as_if_nothing_had_happened(seed: int, drawn_before: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    for _ in range(drawn_before):
        draw()
    file = BytesIO()
    torch.save(snapshot(capture_random_state()), file)
    expected = [draw() for _ in range(3)]
    file.seek(0)
    assert restore_random_state(torch.load(file, weights_only=True)) == ()
    assert [draw() for _ in range(3)] == expected


def test_a_gpu_that_is_gone_is_said() -> None:
    if not torch.cuda.is_available():
        state = {**capture_random_state(), "cuda": torch.zeros(16, dtype=torch.uint8)}
        assert restore_random_state(state) == ("cuda",)
