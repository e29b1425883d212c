"""A Ray cluster as the place of trials; the only file that imports ray.

A trial is a task that asks for a GPU and for all cores of a node: two trials never share one, nor
does another job of the cluster, so its times are its own. Ray repeats nothing by itself: what is
lost is reported, and the journal knows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pitstop.errors import MissingPackage, PitstopError
from pitstop.tune.cluster import NodeLost

if TYPE_CHECKING:
    from pitstop.tune.cluster import NodeCall

_POLL_S: Final = 2.0
_UNPLACED_S: Final = 120.0
"""How long to wait for a node that has what a trial needs, where none has."""
_LEAVING_S: Final = 90.0
"""For a cancelled trial to end its processes; then its worker is killed, and they with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """What a trial asks of a node."""

    cpus: float
    gpus: float


@dataclass(slots=True, kw_only=True)
class RayCluster:
    """The Ray cluster that this machine belongs to, or that ``RAY_ADDRESS`` names."""

    gpus: float | None = None
    """Asked for by a trial; None for one where any node has some."""
    _ray: Any = field(init=False)
    _node: str | None = field(default=None, init=False)
    """Where the last trial ran: the next one goes there, too, while it lives."""

    def __post_init__(self) -> None:
        """Connect.

        Raises:
            MissingPackage: Ray is not installed.
            PitstopError: There is no cluster, or none of its nodes has what a trial asks for.
        """
        try:
            ray = import_module("ray")
        except ImportError as error:
            raise MissingPackage("ray", purpose="tuning over machines") from error
        self._ray = ray
        if not ray.is_initialized():
            try:
                ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise PitstopError(
                    "there is no Ray cluster to tune on; start one with `ray start --head` and "
                    "`ray start --address=HOST:6379` on the other nodes, or name one in "
                    f"RAY_ADDRESS ({_first_sentence(error)})"
                ) from error
        self._require_node()

    def call(self, function: NodeCall, text: str) -> str:
        """Run a function on a node and give its answer.

        Raises:
            NodeLost: The node is gone, or the process there was killed.
            PitstopError: No node has what a trial asks for, or the function failed on it.
        """
        task = self._ray.remote(**self._options())(_on_node)
        reference = task.remote(function, text)
        try:
            self._wait(reference)
            self._node, answer = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise PitstopError(f"a trial could not be started on a node: {error.cause}") from error
        except self._ray.exceptions.RayError as error:
            raise NodeLost(f"{type(error).__name__}: {_first_sentence(error)}") from error
        except BaseException:
            self._cancel(reference)
            raise
        return answer

    def _options(self) -> dict[str, Any]:
        needs = self._require_node()
        options: dict[str, Any] = {
            "num_cpus": needs.cpus,
            "num_gpus": needs.gpus,
            "max_retries": 0,
            # A worker that ran a trial may hold its GPU's memory: the next one gets a new one.
            "max_calls": 1,
        }
        if self._node is not None:
            strategies = import_module("ray.util.scheduling_strategies")
            options["scheduling_strategy"] = strategies.NodeAffinitySchedulingStrategy(
                self._node, soft=True
            )
        return options

    def _require_node(self) -> _Needs:
        """Say what a trial asks for: a GPU, and all cores of the smallest node that has one."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        some = 1.0 if any(node.get("GPU", 0) >= 1 for node in alive) else 0.0
        gpus = some if self.gpus is None else self.gpus
        fitting = [node["CPU"] for node in alive if node.get("GPU", 0) >= gpus and node.get("CPU")]
        if not fitting:
            raise PitstopError(
                f"no node of the Ray cluster has {gpus:g} GPUs and a CPU to give; "
                "`ray status` shows what it has"
            )
        return _Needs(cpus=min(fitting), gpus=gpus)

    def _wait(self, reference: Any) -> None:
        """Wait for an answer, as long as there is a node that could give it."""
        missing_since: float | None = None
        while not self._ray.wait([reference], timeout=_POLL_S)[0]:
            try:
                self._require_node()
            except PitstopError:
                missing_since = missing_since or time.monotonic()
                if time.monotonic() - missing_since > _UNPLACED_S:
                    raise
            else:
                missing_since = None

    def _cancel(self, reference: Any) -> None:
        """End a trial: by an interrupt, which ends its processes; else by killing its worker."""
        self._ray.cancel(reference, force=False)
        if not self._ray.wait([reference], timeout=_LEAVING_S)[0]:
            self._ray.cancel(reference, force=True)


def _first_sentence(error: Exception) -> str:
    """What is wrong; what follows is where Ray's own logs lie."""
    return str(error).strip().split(". ", maxsplit=1)[0].split("\n", maxsplit=1)[0]


def _on_node(function: NodeCall, text: str) -> tuple[str, str]:
    """Run a function on a node, and name the node."""
    ray = import_module("ray")
    return ray.get_runtime_context().get_node_id(), function(text)
