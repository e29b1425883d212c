"""How float32 products are computed is asked and set in a way that never raises, and put back."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pitstop_probe.deep import kernel_profile
from pitstop_probe.deep.kernel_profile import matrix_rates
from pitstop_probe.inventory import Float32Products, memory_by_owner

MATMUL = torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    for backend in (MATMUL, torch.backends.mkldnn.matmul):  # pyright: ignore[reportAttributeAccessIssue]
        backend.fp32_precision = "none"


def asked_everywhere() -> list[str]:
    """What every way of asking says; some raise once a newer one was used to set."""
    said = []
    for ask in (
        lambda: MATMUL.fp32_precision,
        lambda: MATMUL.allow_tf32,
        torch.get_float32_matmul_precision,
    ):
        try:
            said.append(str(ask()))
        except RuntimeError:
            said.append("raises")
    return said


SETTINGS = {
    "nothing": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "allowed": lambda: setattr(MATMUL, "allow_tf32", True),
    "new": lambda: setattr(MATMUL, "fp32_precision", "tf32"),
    "new, not": lambda: setattr(MATMUL, "fp32_precision", "ieee"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_whatever_the_script_has_set_is_read_and_left_as_it_was(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def rate(*_: Any) -> float:
        seen.append(Float32Products(torch).uses_tf32)
        return 1.0

    monkeypatch.setattr(kernel_profile, "_seconds", rate)
    SETTINGS[setting]()
    before = asked_everywhere()
    assert Float32Products(torch).uses_tf32 == (setting not in ("nothing", "new, not"))
    assert set(matrix_rates(torch, "cpu")["flops_per_s"]) == {"fp32", "tf32", "bf16"}
    assert seen == [False, True, False]
    assert asked_everywhere() == before


@pytest.mark.parametrize(("word", "uses"), [("highest", False), ("high", True), ("medium", True)])
def test_an_older_torch_is_asked_in_its_own_words(word: str, uses: bool) -> None:
    kept = [word]
    old = SimpleNamespace(
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=uses))),
        get_float32_matmul_precision=lambda: kept[-1],
        set_float32_matmul_precision=kept.append,
    )
    products = Float32Products(old)
    assert products.uses_tf32 == uses
    products.precision = products.full
    assert not products.uses_tf32
    products.precision = products.tf32
    assert products.uses_tf32
    assert kept == [word, "highest", "high"]


def test_without_parameters_nothing_is_said_of_memory() -> None:
    assert memory_by_owner([]) is None
