"""Many strings as two arrays."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.workloads.reid.data.strings import Strings

WORDS = st.lists(st.text(max_size=12), max_size=20)


@given(WORDS)
def test_strings_come_back(words: list[str]) -> None:
    strings = Strings.of(words)
    assert list(strings) == words
    assert len(strings) == len(words)
    assert list(pickle.loads(pickle.dumps(strings))) == words


@given(WORDS.filter(len), st.data())
def test_some_are_taken_in_the_order_asked_for(words: list[str], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(words) - 1), max_size=30))
    taken = Strings.of(words).take(np.array(places, np.int64))
    assert list(taken) == [words[place] for place in places]


def test_there_is_nothing_beyond_the_last() -> None:
    with pytest.raises(IndexError):
        Strings.of(["a"])[1]


def test_names_pickle_to_less_than_they_are() -> None:
    names = [f"{n % 400:04d}_sysu_{n:04d}_cam{n % 6}_vis.jpg" for n in range(10_000)]
    assert len(pickle.dumps(Strings.of(names))) < sum(map(len, names)) / 3


def test_a_name_that_is_no_utf8_survives() -> None:
    odd = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    assert list(Strings.of([odd])) == [odd]
