"""A cache in front of a function: the same results, read once."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import pitstop
from pitstop.data.cache.shared import SharedCache
from pitstop.errors import DataError

BUDGET_BYTES = 4 << 20


class Counted:
    """Reads numbered noise, and counts."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.calls = 0

    def __call__(self, number: int, scale: int = 1) -> Any:
        self.calls += 1
        noise = np.random.default_rng(number).integers(0, 256, (8, 6, 3), dtype=np.uint8) // scale
        if self.kind == "tensor":
            return torch.from_numpy(noise).float()
        return Image.fromarray(noise) if self.kind == "picture" else noise


@pytest.mark.parametrize("policy", ["keep", "lru"])
@pytest.mark.parametrize("kind", ["array", "tensor", "picture"])
def test_results_are_those_of_the_function_and_are_read_once(kind: str, policy: Any) -> None:
    bare, counted = Counted(kind), Counted(kind)
    with SharedCache(BUDGET_BYTES, policy) as cache:
        read = pitstop.cached(counted, cache)
        for _ in range(3):
            for number in range(5):
                for scale in (1, 2):
                    found, true = read(number, scale=scale), bare(number, scale)
                    assert type(found) is type(true)
                    assert np.array_equal(np.asarray(found), np.asarray(true))
    assert counted.calls == 10


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_writing_to_a_result_changes_nobody_elses(kind: str) -> None:
    with SharedCache(BUDGET_BYTES) as cache:
        read = pitstop.cached(Counted(kind), cache)
        for _ in range(3):
            result = read(1)
            assert np.array_equal(np.asarray(result), np.asarray(Counted(kind)(1)))
            result[:] = 0


def test_pictures_that_are_more_than_an_array_are_read_each_time() -> None:
    palette = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).convert("P")
    sideways = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    sideways.getexif()[274] = 6
    with SharedCache(BUDGET_BYTES) as cache:
        for picture in (palette, sideways):
            read = pitstop.cached(lambda _, picture=picture: picture, cache)
            assert all(read(str(picture.mode)) is picture for _ in range(3))
        assert cache.stats().items == 0


@pytest.mark.parametrize(
    ("argument", "result", "message"),
    [
        (3.5, np.zeros(3), "not with float"),
        ("a", {"image": 1}, "not dict"),
    ],
)
def test_what_a_cache_cannot_hold_is_refused(argument: Any, result: Any, message: str) -> None:
    with SharedCache(BUDGET_BYTES) as cache, pytest.raises(DataError, match=message):
        pitstop.cached(lambda _: result, cache)(argument)


def test_paths_and_their_text_are_the_same_file(tmp_path: Path) -> None:
    counted = Counted("array")
    with SharedCache(BUDGET_BYTES) as cache:
        read = pitstop.cached(lambda _: counted(1), cache)
        read(tmp_path)
        read(str(tmp_path))
    assert counted.calls == 1


def test_it_is_pickled_as_a_handle_also_after_use() -> None:
    with SharedCache(BUDGET_BYTES) as cache:
        read = pitstop.cached(Counted("tensor"), cache)
        for number in range(3):
            read(number)
        again = pickle.loads(pickle.dumps(read))
        assert all(torch.equal(again(number), read(number)) for number in range(3))
        assert again.cache.stats().items == 3


def read_file(path: str) -> np.ndarray[Any, Any]:
    return np.load(path)


class Folder(Dataset[float]):
    """As others write it: a function that reads, and something random after it."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.loader: Any = read_file

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> float:
        return float(self.loader(self.paths[index]).sum())


@pytest.mark.slow
def test_workers_share_what_one_of_them_read(tmp_path: Path) -> None:
    paths = []
    for number in range(12):
        np.save(tmp_path / f"{number}.npy", np.full(4, number))
        paths.append(str(tmp_path / f"{number}.npy"))
    with SharedCache(BUDGET_BYTES) as cache:
        dataset = Folder(paths)
        dataset.loader = pitstop.cached(read_file, cache)
        loader = DataLoader(
            dataset, num_workers=2, multiprocessing_context="spawn", persistent_workers=True
        )
        for _ in range(2):
            assert [float(value) for value in loader] == [4.0 * at for at in range(12)]
        # The first file of each worker shows what comes out; every other one is asked for.
        assert cache.stats().items == 12
        assert cache.stats().hits == 12


def test_the_content_of_a_file_says_what_to_decode() -> None:
    calls: list[int] = []

    def decode(content: bytes | memoryview, *, as_float: bool = False) -> Any:
        calls.append(len(content))
        pixels = np.frombuffer(content, np.uint8)
        return pixels.astype(np.float32) if as_float else pixels

    with SharedCache(BUDGET_BYTES) as cache:
        read = pitstop.cached(decode, cache)
        for content in (b"frame 1", b"frame 2", memoryview(b"frame 1"), bytearray(b"frame 2")):
            np.testing.assert_array_equal(read(content), np.frombuffer(content, np.uint8))
        assert len(calls) == 2
        assert read(b"frame 1", as_float=True).dtype == np.float32
        assert len(calls) == 3
