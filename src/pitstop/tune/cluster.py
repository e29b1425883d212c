"""Trials on machines of a cluster: one after the other, on one node for as long as it is there.

Times of two machines are not compared, so a study stays on its node. A node that is lost takes its
trial with it: that is written into the journal as what it is, and the trial is repeated on another
node. What the journal holds decides, as on one machine; the cluster keeps nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pitstop.records.store import from_json, to_json
from pitstop.records.tuning.study import Trial
from pitstop.tune.node import NodeTrial, Place, place_text, run_node_trial
from pitstop.tune.trial import Trials

_MOST_REPEATS: Final = 3
"""Nodes that may be lost in a row under one trial; then the settings are taken for the cause."""

NodeCall = Callable[[str], str]


class NodeLost(Exception):  # noqa: N818 - reads as the fact it states
    """The node, or the process on it, is gone; its message says how that was seen."""


class Cluster(Protocol):
    """Runs a function on a node."""

    def call(self, function: NodeCall, text: str) -> str:
        """Run it on a node that has what a trial needs, and give its answer.

        Leaves nothing running, also on an interrupt.

        Raises:
            NodeLost: The node is gone, or the process there was killed.
            PitstopError: No node can run it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTrials:
    """Trials of the training engine on a cluster's nodes."""

    cluster: Cluster
    asked: NodeTrial
    """All but the overrides of the trial."""

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try settings on a node."""
        asked = replace(self.asked, overrides=tuple(overrides))
        try:
            return from_json(self.cluster.call(run_node_trial, to_json(asked)), Trial)
        except NodeLost as error:
            return Trial(overrides=asked.overrides, end="lost", reason=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTrials:
    """Trials that are run again where a node was lost under them.

    Stands above the journal: what was lost is in it, too, and a study that goes on from it repeats
    neither.
    """

    trials: Trials
    progress: Callable[[Trial], None]
    """Told of what was lost; of the others whoever asked for them tells."""

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try settings until somebody has an answer."""
        trial = self.trials.run(overrides)
        for _ in range(_MOST_REPEATS - 1):
            if trial.end != "lost":
                break
            self.progress(trial)
            trial = self.trials.run(overrides)
        return trial


def place_on(cluster: Cluster) -> Place:
    """Ask a node what it has; if it is lost meanwhile, another one."""
    for _ in range(_MOST_REPEATS - 1):
        try:
            return from_json(cluster.call(place_text, ""), Place)
        except NodeLost:
            continue
    return from_json(cluster.call(place_text, ""), Place)
