"""How much of this host a process may use, in the two numbers a configuration is judged by."""

import math
from pathlib import Path

import psutil

from pitstop.config.host_limits import HostLimits
from pitstop.measure.host.cgroup import ROOT, read_cgroup
from pitstop.measure.host.load import affinity_cores


def read_host_limits(root: Path = ROOT) -> HostLimits:
    """Read cores and memory under affinity and control groups; `root` is another one in tests."""
    cgroup = read_cgroup(root)
    cores = affinity_cores() or 1
    if cgroup.quota_cores is not None:
        cores = min(cores, max(1, math.ceil(cgroup.quota_cores)))
    memory = psutil.virtual_memory().total
    if cgroup.memory_limit_bytes is not None:
        memory = min(memory, cgroup.memory_limit_bytes)
    return HostLimits(cores=cores, memory_bytes=memory)
