"""What `import pitstop` offers: names to complete, sizes as one writes them, objects that show."""

from pathlib import Path

import pytest
import torch

import pitstop
from pitstop.errors import ConfigError


def test_completion_offers_what_the_package_offers_and_nothing_else() -> None:
    assert dir(pitstop) == sorted(pitstop.__all__)
    assert all(getattr(pitstop, name) is not None for name in dir(pitstop))


def test_a_cache_takes_its_budget_as_one_writes_it() -> None:
    with pitstop.SharedCache("64MiB") as cache:
        assert cache.stats().budget_bytes == 64 << 20
        assert repr(cache).startswith("SharedCache(keep, 0 items, ")
        assert repr(cache).endswith(" of 64.0 MiB)")
    assert repr(cache) == "SharedCache(closed)"
    with pytest.raises(ConfigError, match="a size with its unit such as"):
        pitstop.SharedCache("64")


def test_without_a_cuda_device_batches_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    batches = [{"x": torch.arange(3)}, {"x": torch.arange(2)}]
    prefetcher = pitstop.DevicePrefetcher(batches, "cuda")
    assert all(a is b for a, b in zip(prefetcher, batches, strict=True))
    assert repr(prefetcher) == "DevicePrefetcher(list to cpu)"


def test_a_sampler_shows_its_shape() -> None:
    sampler = pitstop.PKSampler(
        [0, 0, 1, 1, 2, 2], [1] * 6, identities_per_batch=2, records_per_identity=2, seed=0
    )
    assert repr(sampler).startswith("PKSampler(P=2, K=2, ")


def test_a_process_that_is_not_measured_says_so(tmp_path: Path) -> None:
    from pitstop.measure.script.attach import Attached

    assert repr(Attached(None, tmp_path)) == "Attached(not measured here)"
