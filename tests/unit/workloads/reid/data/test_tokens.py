"""Captions as numbers."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from pitstop.errors import DataError
from pitstop.workloads.reid.data.strings import Strings
from pitstop.workloads.reid.data.tokens import (
    UNKNOWN_BUCKETS,
    FolderTokenizer,
    WordTokenizer,
    encode_all,
)

CAPTIONS = ["A man in a red coat.", "The woman has a RED bag, a hat and a t-shirt", ""]
WORDS = WordTokenizer.of(CAPTIONS)


def test_a_caption_stands_between_its_marks_and_is_filled_up() -> None:
    rows = encode_all(WORDS, CAPTIONS, length=12)
    row = rows.row(0).tolist()
    assert row[0] == WORDS.start_id
    assert row.index(WORDS.end_id) == 7
    assert row[8:] == [WORDS.pad_id] * 4
    words = [WORDS.vocabulary[number - 2 - UNKNOWN_BUCKETS] for number in row[1:7]]
    assert words == ["a", "man", "in", "a", "red", "coat"]
    assert rows.row(2).tolist()[:2] == [WORDS.start_id, WORDS.end_id]


def test_a_caption_of_a_thousand_words_keeps_its_end() -> None:
    rows = encode_all(WORDS, ["red " * 1000, "a man"], length=77)
    row = rows.row(0)
    assert len(row) == 77
    assert row[-1] == WORDS.end_id
    assert np.count_nonzero(row == WORDS.end_id) == 1
    assert WORDS.pad_id not in row


def test_rows_are_as_long_as_the_longest_caption_needs_in_steps_of_eight() -> None:
    assert encode_all(WORDS, ["red " * 3], length=77).length == 8
    assert encode_all(WORDS, ["red " * 6, "a man"], length=77).length == 8
    assert encode_all(WORDS, ["red " * 7], length=77).length == 16
    assert encode_all(WORDS, ["red " * 7], length=9).length == 9
    assert encode_all(WORDS, [], length=77).length == 8


def test_the_end_has_the_highest_number() -> None:
    rows = encode_all(WORDS, [*CAPTIONS, "zebra xylophone"], length=20)
    assert WORDS.end_id == WORDS.vocab_size - 1
    assert all(rows.row(place).max() == WORDS.end_id for place in range(4))


def test_nothing_said_is_a_row_without_words() -> None:
    row = encode_all(WORDS, CAPTIONS, length=6).row(-1).tolist()
    assert row == [WORDS.start_id, WORDS.end_id] + [WORDS.pad_id] * 4


@given(st.lists(st.text("abcd ", max_size=20), min_size=1), st.randoms())
def test_words_have_the_same_numbers_whatever_the_order_of_captions(
    captions: list[str], random: "object"
) -> None:
    shuffled = list(captions)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert WordTokenizer.of(captions) == WordTokenizer.of(shuffled)


@given(st.lists(st.text(max_size=30), max_size=6), st.integers(3, 10))
def test_every_number_is_in_the_vocabulary(captions: list[str], length: int) -> None:
    rows = encode_all(WORDS, Strings.of(captions), length=length)
    for place in range(len(captions)):
        row = rows.row(place)
        assert row.shape == (rows.length,)
        assert 0 <= row.min() <= row.max() < WORDS.vocab_size
        assert np.count_nonzero(row == WORDS.end_id) == 1


def test_unknown_words_differ_from_each_other_and_from_known_ones() -> None:
    zebra, yak, red = (WORDS.words(word)[0] for word in ("zebra", "yak", "red"))
    assert zebra != yak
    assert max(zebra, yak) < 2 + UNKNOWN_BUCKETS <= red
    assert WORDS.words("zebra") == WordTokenizer(()).words("zebra")


def test_rare_words_are_left_out_first() -> None:
    few = WordTokenizer.of(["b b a a a c"], max_words=2)
    assert few.vocabulary == ("a", "b")


def test_a_row_without_room_for_a_word_is_refused() -> None:
    with pytest.raises(DataError, match="a caption of 2 tokens cannot hold a word"):
        encode_all(WORDS, CAPTIONS, length=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    known = {"red": 0, "coat": 1, "?": 2, "<|startoftext|>": 3, "<|endoftext|>": 4}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_pretrained_model_s_tokenizer_is_used_as_it_is(folder: Path) -> None:
    tokenizer = FolderTokenizer(folder)
    assert tokenizer.vocab_size == 5
    rows = encode_all(tokenizer, ["red coat", "red " * 99], length=6)
    assert rows.row(0).tolist() == [3, 0, 1, 4, 4, 4]
    assert rows.row(1).tolist() == [3, 0, 0, 0, 0, 4]


def test_it_travels_as_its_folder(folder: Path) -> None:
    tokenizer = FolderTokenizer(folder)
    assert tokenizer.words("red") == [0]
    packed = pickle.dumps(tokenizer)
    assert len(packed) < 500
    assert pickle.loads(packed).words("coat") == [1]


def test_what_is_wrong_with_a_tokenizer_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=r"there is no .*empty/tokenizer.json; copy it there"):
        _ = FolderTokenizer(tmp_path / "empty").vocab_size
    with pytest.raises(DataError, match=r"tokenizer.json does not know \[CLS\]"):
        _ = FolderTokenizer(folder, start="[CLS]").start_id
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer.json is no tokenizer"):
        _ = FolderTokenizer(folder).vocab_size
