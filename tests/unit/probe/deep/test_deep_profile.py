"""What is slowed down comes early, and late only where that failed."""

from types import SimpleNamespace
from typing import Any

import pytest

from pitstop_probe.deep import deep_profile
from pitstop_probe.deep.deep_profile import DeepProfile


class FakeKernels:
    """A profile that may be refused."""

    kind = "kernels"
    refusals = 0

    def __init__(self, *_: Any) -> None:
        pass

    def on(self) -> None:
        if FakeKernels.refusals:
            FakeKernels.refusals -= 1
            raise RuntimeError("the script profiles itself")

    def off(self) -> None:
        pass

    def values(self, step: int) -> dict[str, Any]:
        return {"step": step}


LAST = 30


def written(monkeypatch: pytest.MonkeyPatch, *, refusals: int, steps: int) -> list[Any]:
    """Go through a training on a device; give what was written, and at which border."""
    cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 0)
    tracker = SimpleNamespace(
        steps=0, special=lambda _: None, enter=lambda _: True, leave=lambda _: None
    )
    monkeypatch.setattr(deep_profile, "KernelProfile", FakeKernels)
    monkeypatch.setattr(deep_profile, "compile_counts", lambda: {"graphs": 1})
    monkeypatch.setattr(deep_profile, "device_rates", lambda *_: {"flops_per_s": {}})
    monkeypatch.setattr(FakeKernels, "refusals", refusals)
    found: list[Any] = []
    models: Any = SimpleNamespace(outermost=[])
    deep = DeepProfile(
        SimpleNamespace(cuda=cuda),
        tracker,  # type: ignore[arg-type]
        models,
        last_step=LAST,
        write=lambda kind, values: found.append((kind, tracker.steps, values)),
    )
    for border in range(steps):
        tracker.steps = border
        deep.end(border)
        deep.begin(border)
    return found


def test_kernels_and_rates_are_known_before_warm_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    short = written(monkeypatch, refusals=0, steps=20)
    assert [(kind, step) for kind, step, _ in short if kind in ("kernels", "rates")] == [
        ("kernels", 13),
        ("rates", 13),
    ]
    long = written(monkeypatch, refusals=0, steps=LAST + 10)
    assert [kind for kind, *_ in long] == [kind for kind, *_ in short], "and once only"


def test_what_was_refused_is_told_and_tried_again_late(monkeypatch: pytest.MonkeyPatch) -> None:
    found = written(monkeypatch, refusals=1, steps=LAST + 10)
    told = [values for kind, _, values in found if kind == "not_sampled"]
    assert {"what": "kernels", "why": "the script profiles itself"} in told
    assert {"what": "modules", "why": "the script compiles"} in told
    assert [step for kind, step, _ in found if kind == "kernels"] == [LAST + 3]
