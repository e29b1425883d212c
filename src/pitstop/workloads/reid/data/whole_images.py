"""Images read whole, one by one: what cannot be decoded, and what two people share."""

import hashlib
from collections.abc import Hashable
from pathlib import Path
from typing import Final

from pitstop.data.packed_files import find_pack, read_file
from pitstop.errors import DataError
from pitstop.workloads.reid.data.decode import decode

_WHOLE: Final = (1 << 16, 1 << 16)  # so fine that no image is decoded at a reduced size


class WholeImages:
    """Decodes images; the same bytes under two people are a mistake."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._owners: dict[bytes, tuple[Hashable, Path]] = {}

    def read(self, path: Path, person: Hashable) -> int:
        """Give the bytes of an image; 0 where it cannot be used."""
        packed = find_pack(path)
        if packed is not None and packed.is_pixels(path):
            # Whether they have changed is for the pack's sums to say, and small ones may be alike.
            return packed.content(path).size
        try:
            data = read_file(path)
            decode(data, path, needed=_WHOLE, grey=False)
        except OSError as error:
            self._problems.append(f"cannot read {path}: {error.strerror}")
            return 0
        except DataError as error:
            self._problems.append(str(error))
            return 0
        digest = hashlib.blake2b(data, digest_size=16).digest()
        owner, other = self._owners.setdefault(digest, (person, path))
        if owner != person:
            self._problems.append(f"{path} is the same file as {other}, of another person")
        return len(data)
