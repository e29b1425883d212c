"""Lines of our own as a log, examined."""

from pathlib import Path

from pitstop.doctor.logs.examine import examine_log
from pitstop.logs.read import read_logs
from pitstop.records.logs.summary import LogExamination


def examine(path: Path, lines: list[str]) -> LogExamination:
    """Write lines into a file and say what the doctor makes of them."""
    path.write_text("\n".join(lines) + "\n")
    return examine_log(read_logs([path])[0])
