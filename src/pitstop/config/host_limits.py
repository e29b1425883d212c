"""How much of a host a run may use; read by pitstop.measure, judged in host_risks.py."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """What is usable here, not what is built in.

    Attributes:
        cores: Cores this process may run on, rounded up where a quota gives a part of one.
        memory_bytes: Memory this process and its children may use together.
    """

    cores: int
    memory_bytes: int
