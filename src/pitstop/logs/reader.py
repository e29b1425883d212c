"""What a reader of a log format is: a name, its source, a way to recognise it, a way to read it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pitstop.logs.builder import LogBuilder
from pitstop.logs.lines import LONGEST_LINE
from pitstop.logs.rows import Rows
from pitstop.records.logs.windows import Disagreement, Meaning

Feed = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One log format.

    ``start`` hands out a function that takes the log's lines one by one, in order, and tells the
    builder what it understood. It may raise ValueError or IndexError on a damaged line: that line
    is counted and left out.
    """

    name: str
    defined_by: str
    """Repository and file whose source defines the format."""
    start: Callable[[LogBuilder], Feed]
    mark: re.Pattern[bytes]
    """Found in every line by which the format is recognised."""
    needle: bytes = b""
    """Stands in every line the mark can match: a quick look before the pattern."""
    weight: float = 1.0
    """How sure a great many matching lines make: 1 for an unmistakable shape."""
    rebuild: str = ""
    """Formula of the time of a step; empty when the printed time is a window mean."""
    step: Meaning = "not known"
    """What the printed time of a step sums up."""
    step_formula: str = ""
    data: Meaning = "not known"
    data_formula: str = ""
    scalars: Meaning = "not known"
    rate: Meaning = "not known"
    memory_formula: str = ""
    is_count_defined: bool = True
    """Whether the tool itself counts training steps, not whatever its user likes."""
    counting: str = ""
    """Formula of the step over the whole run, where only the step of the epoch is printed."""
    looks: Callable[[Sequence[bytes]], float] | None = None
    """Recognises the format in another way than by matching lines."""
    is_binary: bool = False
    """Whether it takes portions of the file as they are instead of lines."""
    judge: Callable[[LogBuilder, Rows], list[Disagreement]] | None = None
    """Finds disagreements that only this format can have."""
    notes: tuple[str, ...] = ()
    takes_long_lines: bool = False
    """Whether lines come whole: JSON is parsed in linear time, a pattern may not be."""

    def sniff(self, lines: Sequence[bytes]) -> float:
        """Say how sure it is that these lines are of this format, 0 to 1.

        Each matching line halves the doubt: ``weight * (1 - 0.5 ** matches)``.
        """
        if self.looks is not None:
            return self.looks(lines)
        matches = 0
        for line in lines:
            if self.needle in line and self.mark.search(line, 0, LONGEST_LINE) is not None:
                matches += 1
                if matches >= _ENOUGH:
                    break
        return self.weight * (1 - 0.5**matches)


_ENOUGH = 20
