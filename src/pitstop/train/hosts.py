"""What the hosts of a run must have in common, found out before the first step.

One rank decides where a run begins, and all know. The folder of checkpoints, settings and data are
compared: hosts that differ in them would wait for each other for ever, or lose the run at its end.
The clock of each host is compared with that of the first rank, so that a timeline of all ranks can
be drawn.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

import torch
from torch import distributed

from pitstop.errors import ConfigError, PitstopError
from pitstop.records.run import HostClock
from pitstop.records.units import listing
from pitstop.train.ranks import Ranks

ValueT = TypeVar("ValueT")

# A folder that several hosts share may show a new file to others a moment later.
_PROBE_LIMIT_S: Final = 10.0
_PROBE_POLL_S: Final = 0.05
_CLOCK_ROUNDS: Final = 16
_MOST_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a rank came to: a value, or why there is none."""

    value: object = None
    problem: str = ""


def decided_by_first(ranks: Ranks, decide: Callable[[], ValueT]) -> ValueT:
    """Have the first rank decide, and all others know what it decided.

    Raises:
        PitstopError: It could not decide; the same on all ranks.
    """
    if ranks.world_size == 1:
        return decide()
    answer, error = _attempt(decide) if ranks.is_first else (_Answer(), None)
    answers = [answer]
    # The bytes are those that the first rank of this run wrote a moment ago.
    distributed.broadcast_object_list(answers, src=0)
    if error is not None:
        raise error
    if answers[0].problem:
        raise PitstopError(answers[0].problem)
    return cast("ValueT", answers[0].value)


def done_by_all(ranks: Ranks, act: Callable[[], ValueT]) -> ValueT:
    """Have all ranks do something that must come out well on each.

    Raises:
        PitstopError: It did not, on this rank or another.
    """
    if ranks.world_size == 1:
        return act()
    answer, error = _attempt(act)
    problems = _gathered(ranks, answer.problem)
    if error is not None:
        raise error
    for host in ranks.hosts:
        for rank in host.ranks:
            if problems[rank]:
                raise PitstopError(f"rank {rank} on {host.name}: {problems[rank]}")
    return cast("ValueT", answer.value)


def require_shared_folder(ranks: Ranks, folder: Path) -> None:
    """See that every host finds in a folder what the first rank writes there.

    Raises:
        ConfigError: Where one does not; on all ranks.
        OSError: The first rank cannot write there.
    """
    if len(ranks.hosts) < 2:
        return
    name = decided_by_first(ranks, lambda: f".probe-{secrets.token_hex(8)}")
    probe = folder / name
    if ranks.is_first:
        probe.write_bytes(b"")
    ranks.barrier()
    limit_s = _PROBE_LIMIT_S
    if ranks.timeout is not None:  # the others wait for the answer
        limit_s = min(limit_s, ranks.timeout.total_seconds() / 3)
    sees = ranks.local_rank != 0 or _appears(probe, limit_s)
    all_see = _gathered(ranks, sees)
    if ranks.is_first:
        with suppress(OSError):
            probe.unlink()
    blind = [host for host in ranks.hosts if not all_see[host.ranks[0]]]
    if blind:
        raise ConfigError(
            f"{listing(blind, most=_MOST_SHOWN)} cannot see what {ranks.hosts[0].name} writes "
            f"into {folder}, where checkpoints go: all hosts must share that folder; set "
            "checkpoint.dir to one on storage that all of them have mounted"
        )


def require_same(ranks: Ranks, what: str, values: Mapping[str, object]) -> None:
    """See that every host has the same settings or data as the first.

    Args:
        ranks: All of them call this; the first of each host speaks for it.
        what: What is compared, for the message.
        values: Plain values by name.

    Raises:
        ConfigError: Where one differs; on all ranks.
    """
    if len(ranks.hosts) < 2:
        return
    found = _gathered(ranks, dict(values) if ranks.local_rank == 0 else None)
    first, first_host = found[0] or {}, ranks.hosts[0]
    for host in ranks.hosts[1:]:
        own = found[host.ranks[0]] or {}
        names = [name for name in {**first, **own} if first.get(name) != own.get(name)]
        if names:
            shown = "; ".join(
                f"{name} is {own.get(name)} on {host.name} and {first.get(name)} on "
                f"{first_host.name}"
                for name in names[:_MOST_SHOWN]
            )
            raise ConfigError(
                f"the hosts of this run differ in {what}: {shown}; start all of them with the same"
            )


def compare_clocks(
    ranks: Ranks,
    now_s: Callable[[], float] = time.time,  # noqa: TID251 - it is the wall clocks that differ
) -> HostClock | None:
    """Estimate how far the clock of this host is from that of the first rank's.

    The first rank of each host asks for the time, again and again. The answer was given between
    asking and receiving it, most likely in the middle; the shortest way is the one to believe.

    Args:
        ranks: All of them call this.
        now_s: The wall clock of this host.

    Returns:
        The estimate and what it may be off by; None for a run on one host, whose clock is one.
    """
    if len(ranks.hosts) < 2:
        return None
    # Numbers in host memory: NCCL has no such messages.
    group = cast(
        "distributed.ProcessGroup", distributed.new_group(backend="gloo", timeout=ranks.timeout)
    )
    own = HostClock(reference=ranks.hosts[0].name, offset_s=0.0, error_s=0.0)
    for host in ranks.hosts[1:]:
        asker = host.ranks[0]
        if ranks.is_first:
            _tell_time(asker, now_s, group)
        elif ranks.rank == asker:
            own = _ask_time(own.reference, now_s, group)
    clocks = _gathered(ranks, own)
    distributed.destroy_process_group(group)
    assert ranks.host is not None
    return clocks[ranks.host.ranks[0]]


def _tell_time(asker: int, now_s: Callable[[], float], group: distributed.ProcessGroup) -> None:
    question = torch.zeros(1, dtype=torch.float64)
    for _ in range(_CLOCK_ROUNDS):
        distributed.recv(question, src=asker, group=group)
        told = torch.tensor([now_s()], dtype=torch.float64)
        distributed.send(told, dst=asker, group=group)


def _ask_time(
    reference: str, now_s: Callable[[], float], group: distributed.ProcessGroup
) -> HostClock:
    told = torch.zeros(1, dtype=torch.float64)
    rounds: list[tuple[float, float]] = []
    for _ in range(_CLOCK_ROUNDS):
        asked_s = now_s()
        distributed.send(told, dst=0, group=group)
        distributed.recv(told, src=0, group=group)
        heard_s = now_s()
        rounds.append((heard_s - asked_s, float(told.item()) - (asked_s + heard_s) / 2))
    trip_s, offset_s = min(rounds)
    return HostClock(reference=reference, offset_s=offset_s, error_s=trip_s / 2)


def describe_hosts(ranks: Ranks, clock: HostClock | None) -> tuple[str, ...]:
    """Say over which hosts a run spreads; nothing where it is one."""
    if clock is None:
        return ()
    counts = ", ".join(f"{host.name} {len(host.ranks)}" for host in ranks.hosts)
    return (f"{ranks.world_size} ranks on {len(ranks.hosts)} hosts: {counts}",)


def _appears(path: Path, limit_s: float) -> bool:
    until_s = time.monotonic() + limit_s
    while not path.exists():
        if time.monotonic() > until_s:
            return False
        time.sleep(_PROBE_POLL_S)
    return True


def _attempt(act: Callable[[], object]) -> tuple[_Answer, Exception | None]:
    """Try something that another rank waits for; what goes wrong is told before it is raised."""
    try:
        return _Answer(value=act()), None
    except (PitstopError, OSError) as error:
        return _Answer(problem=str(error) or type(error).__name__), error


def _gathered(ranks: Ranks, value: ValueT) -> list[ValueT]:
    values = [value] * ranks.world_size
    distributed.all_gather_object(values, value)
    return values
