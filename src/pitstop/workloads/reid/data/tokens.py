"""Captions as numbers: with the tokenizer of a pretrained model, or with words of our own.

    [start] a man in a red coat ... [end] [pad] [pad]

A caption that is too long loses words, never its end token, at which a text tower reads the
caption's feature.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from pitstop.errors import DataError, MissingPackage
from pitstop.workloads.reid.data.strings import Strings

if TYPE_CHECKING:
    import tokenizers

Ints = npt.NDArray[np.int64]

MOST_WORDS: Final = 8_192
UNKNOWN_BUCKETS: Final = 64

_WORD: Final = re.compile(r"\w+")
_PAD: Final = 0
_START: Final = 1
_FIRST_BUCKET: Final = 2
# Lengths that are multiples of it keep matrix products aligned.
_LENGTH_STEP: Final = 8


class CaptionTokenizer(Protocol):
    """Turns captions into numbers below `vocab_size`."""

    @property
    def vocab_size(self) -> int:
        """Numbers there are."""
        ...

    @property
    def start_id(self) -> int:
        """What stands before a caption."""
        ...

    @property
    def end_id(self) -> int:
        """What stands behind a caption."""
        ...

    @property
    def pad_id(self) -> int:
        """What fills up the rest."""
        ...

    def words(self, caption: str) -> Sequence[int]:
        """Give the numbers of a caption without start and end."""
        ...


@dataclass(frozen=True, slots=True)
class WordTokenizer:
    """Whole words of the training captions; others share a few numbers by a hash of their letters.

    The end token has the highest number, as in CLIP, whose text tower may look for it that way.
    """

    vocabulary: tuple[str, ...]
    """Most frequent first."""

    @classmethod
    def of(cls, captions: Iterable[str], max_words: int = MOST_WORDS) -> "WordTokenizer":
        """Gather the words of captions; the order of captions does not matter."""
        counts = Counter[str]()
        for caption in captions:
            counts.update(_WORD.findall(caption.lower()))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[:max_words]))

    @property
    def vocab_size(self) -> int:
        """Words, buckets of unknown ones, and three marks."""
        return _FIRST_BUCKET + UNKNOWN_BUCKETS + len(self.vocabulary) + 1

    @property
    def start_id(self) -> int:
        """One."""
        return _START

    @property
    def end_id(self) -> int:
        """The highest."""
        return self.vocab_size - 1

    @property
    def pad_id(self) -> int:
        """Zero."""
        return _PAD

    def words(self, caption: str) -> Sequence[int]:
        """Look words up."""
        return self.encode_all([caption])[0]

    def encode_all(self, captions: Iterable[str]) -> list[list[int]]:
        """Look the words of many captions up at once."""
        base = _FIRST_BUCKET + UNKNOWN_BUCKETS
        known = {word: base + place for place, word in enumerate(self.vocabulary)}
        return [
            [known.get(word) or _bucket(word) for word in _WORD.findall(caption.lower())]
            for caption in captions
        ]


@dataclass(frozen=True)
class FolderTokenizer:
    """The tokenizer of a pretrained model, read from `tokenizer.json` in its folder.

    Travels to other processes as the folder's name.
    """

    folder: Path
    start: str = "<|startoftext|>"
    end: str = "<|endoftext|>"

    @cached_property
    def _tokenizer(self) -> "tokenizers.Tokenizer":
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise MissingPackage("tokenizers", purpose="a pretrained model's tokenizer") from error
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise DataError(f"there is no {path}; copy it there from the model's own folder")
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:
            # The library raises the bare class, whatever is wrong.
            raise DataError(f"{path} is no tokenizer: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("folder", "start", "end")}

    @property
    def vocab_size(self) -> int:
        """As the file has it, marks included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def start_id(self) -> int:
        """Number of the start mark."""
        return self._mark(self.start)

    @property
    def end_id(self) -> int:
        """Number of the end mark."""
        return self._mark(self.end)

    @property
    def pad_id(self) -> int:
        """CLIP fills up with its end mark; the first one counts."""
        return self.end_id

    def words(self, caption: str) -> Sequence[int]:
        """Encode without marks, which are put around what is left after cutting."""
        return self._tokenizer.encode(caption, add_special_tokens=False).ids

    def _mark(self, text: str) -> int:
        number = self._tokenizer.token_to_id(text)
        if number is None:
            raise DataError(f"{self.folder / 'tokenizer.json'} does not know {text}")
        return number


class TokenRows:
    """Captions as rows of numbers, each as long as it is; padded when one is asked for.

    Args:
        values: All rows one behind the other.
        first: Where each begins, and the end of the last.
        length: Tokens of a row once it is padded.
        tokenizer: Who made them.
    """

    __slots__ = ("_empty", "_pad", "first", "length", "values")

    def __init__(
        self, values: npt.NDArray[Any], first: Ints, length: int, tokenizer: CaptionTokenizer
    ) -> None:
        self.values = values
        self.first = first
        self.length = length
        self._pad = tokenizer.pad_id
        self._empty = (tokenizer.start_id, tokenizer.end_id)

    def __len__(self) -> int:
        return len(self.first) - 1

    def row(self, place: int) -> Ints:
        """Give a caption, padded; -1 for one that says nothing."""
        out = np.full(self.length, self._pad, np.int64)
        if place < 0:
            out[: len(self._empty)] = self._empty
        else:
            part = self.values[self.first[place] : self.first[place + 1]]
            out[: len(part)] = part
        return out


def encode_all(
    tokenizer: CaptionTokenizer, captions: Strings | Sequence[str], *, length: int
) -> TokenRows:
    """Encode captions once for all, so that workers need not.

    Rows are padded to the longest of them, in steps of 8, and not to `length`: a text tower reads a
    caption at its end token, which sees nothing behind it. All rows have one length, so that
    nothing is compiled anew.

    Args:
        tokenizer: Who knows the words.
        captions: What to encode.
        length: Longest row, start and end token included.

    Raises:
        DataError: Where not even one word fits.
    """
    if length < 3:
        raise DataError(f"a caption of {length} tokens cannot hold a word; take at least 3")
    if isinstance(tokenizer, WordTokenizer):
        words = tokenizer.encode_all(captions)
    else:
        words = [list(tokenizer.words(caption)) for caption in captions]
    start, end = tokenizer.start_id, tokenizer.end_id
    rows = [[start, *numbers[: length - 2], end] for numbers in words]
    first = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    values = np.fromiter((n for row in rows for n in row), dtype, int(first[-1]))
    longest = max((len(row) for row in rows), default=len((start, end)))
    used = min(length, -(-longest // _LENGTH_STEP) * _LENGTH_STEP)
    return TokenRows(values, first, used, tokenizer)


def words_sum(tokenizer: CaptionTokenizer) -> int:
    """Make a number of the words that a dataset gave; 0 for a tokenizer that came with a model."""
    if not isinstance(tokenizer, WordTokenizer):
        return 0
    return zlib.crc32("\n".join(tokenizer.vocabulary).encode()) + 1


def _bucket(word: str) -> int:
    return _FIRST_BUCKET + zlib.crc32(word.encode("utf-8", "surrogateescape")) % UNKNOWN_BUCKETS
