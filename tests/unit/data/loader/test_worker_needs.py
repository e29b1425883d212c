"""What workers need is asked for before one starts, in one sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.data.loader.worker_needs import what_is_lacking

PLENTY = 1 << 40


def test_a_usual_system_lacks_nothing() -> None:
    assert what_is_lacking(16, free_handles=1000, shm_free_bytes=64 << 20) is None


def test_what_is_not_known_is_not_lacking() -> None:
    assert what_is_lacking(16, free_handles=None, shm_free_bytes=None) is None


@pytest.mark.parametrize(
    ("free_handles", "shm_free_bytes", "said"),
    [
        (14, PLENTY, "need at least 32 more open files, and this process may open 14"),
        (-3, PLENTY, "may open 0; raise the limit (ulimit -n)"),
        (1000, 16 << 10, "need at least 64.0 KiB of /dev/shm, and 16.0 KiB of it are free"),
    ],
)  # fmt: skip
def test_what_is_short_is_named_with_its_size(
    free_handles: int, shm_free_bytes: int, said: str
) -> None:
    text = what_is_lacking(2, free_handles=free_handles, shm_free_bytes=shm_free_bytes)
    assert text is not None
    assert said in text


@given(st.integers(1, 64), st.integers(0, 2000), st.integers(0, 4 << 20))
def test_fewer_workers_never_lack_more(workers: int, handles: int, shm: int) -> None:
    if what_is_lacking(workers + 1, free_handles=handles, shm_free_bytes=shm) is None:
        assert what_is_lacking(workers, free_handles=handles, shm_free_bytes=shm) is None
