"""What the control groups of this process allow and how much of it is spent, v1 and v2.

A limit may be set on any group above a process, so every reading walks from the process's own
group up to the mount and keeps the tightest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path("/")

# v1 writes "no limit" as the largest page-aligned signed 64-bit number.
_V1_NO_LIMIT: Final = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupReading:
    """Limits and use of the control groups a process sits in; None is "no limit" or "unknown"."""

    memory_limit_bytes: int | None = None
    """Tightest memory limit."""
    memory_usage_bytes: int | None = None
    """Charged to the group that owns the tightest limit (to the own group without one)."""
    memory_working_bytes: int | None = None
    """The same less inactive file pages, which are dropped before anybody is killed."""
    quota_cores: float | None = None
    """Processor time granted, in cores."""
    throttled_s: float | None = None
    """Time the own group has been held back by its quota since it exists, in seconds."""


def read_cgroup(root: Path = ROOT) -> CgroupReading:
    """Read limits and use of the calling process's control groups.

    Args:
        root: Where ``proc`` and ``sys`` lie; another folder than ``/`` only in tests.
    """
    memory = _groups(root, "memory")
    cpu = _groups(root, "cpu")
    limits = [(limit, group) for group in memory if (limit := _memory_limit(group)) is not None]
    limit, holder = min(limits, key=lambda pair: pair[0], default=(None, None))
    holder = holder or next(iter(memory), None)
    usage = None if holder is None else _memory_usage(holder)
    quotas = [quota for group in cpu if (quota := _quota_cores(group)) is not None]
    return CgroupReading(
        memory_limit_bytes=limit,
        memory_usage_bytes=usage,
        memory_working_bytes=_working(holder, usage),
        quota_cores=min(quotas, default=None),
        throttled_s=_throttled_s(cpu[0]) if cpu else None,
    )


def _groups(root: Path, controller: str) -> list[Path]:
    """Folders of the groups that bind this process for one controller, innermost first."""
    lines = (_text(root / "proc/self/cgroup") or "").splitlines()
    unified: str | None = None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return list(_upwards(_first_folder(root, (controller, controllers)), path))
        if not controllers:
            unified = path
    if unified is None:
        return []
    # On a hybrid host the v2 tree hangs below the v1 mounts.
    return list(_upwards(_first_folder(root, (".", "unified"), marker="cgroup.procs"), unified))


def _first_folder(root: Path, names: tuple[str, ...], *, marker: str = ".") -> Path | None:
    for name in names:
        folder = root / "sys/fs/cgroup" / name
        if (folder / marker).exists():
            return folder
    return None


def _upwards(mount: Path | None, path: str) -> Iterator[Path]:
    """Yield the own group, its parents and the mount.

    Inside a container the path may be that of the host and lie outside the mount; the mount
    itself is the own group then.
    """
    if mount is None:
        return
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not mount.joinpath(*parts).is_dir():
        parts = []
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _memory_limit(group: Path) -> int | None:
    modern = _number(group / "memory.max")
    old = _number(group / "memory.limit_in_bytes")
    limit = modern if modern is not None else old
    return None if limit is None or limit >= _V1_NO_LIMIT else limit


def _memory_usage(group: Path) -> int | None:
    modern = _number(group / "memory.current")
    return modern if modern is not None else _number(group / "memory.usage_in_bytes")


def _working(group: Path | None, usage: int | None) -> int | None:
    if group is None or usage is None:
        return None
    stat = _table(group / "memory.stat")
    # v1 keeps sums over the children under names of their own.
    inactive = stat.get("total_inactive_file", stat.get("inactive_file"))
    return None if inactive is None else max(0, usage - inactive)


def _quota_cores(group: Path) -> float | None:
    words = (_text(group / "cpu.max") or "").split()
    if len(words) == 2:
        quota, period = (int(word) if word.isdigit() else None for word in words)
    else:
        quota = _number(group / "cpu.cfs_quota_us")
        period = _number(group / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _throttled_s(group: Path) -> float | None:
    stat = _table(group / "cpu.stat")
    if "throttled_usec" in stat:
        return stat["throttled_usec"] / 1e6
    if "throttled_time" in stat:
        return stat["throttled_time"] / 1e9
    return None


def _table(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in (_text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(path: Path) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
