"""Going on with another number of ranks than a checkpoint was saved by: what carries over.

Weights, optimizer, averages and the loss scale are the same on all ranks and carry over as they
are. The place in the data is the same on all ranks, too, counted in rounds; the samplers deal what
is left of the epoch to the ranks there are. A rank that was there before draws its random numbers
on; one that is new begins with numbers of its own. The learning rate follows the rule of the
configuration (`optimizer.lr_scaling`) for the new effective batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pitstop.config.sections import RunConfig
from pitstop.errors import CheckpointError
from pitstop.train.optim.schedule import scaled_lr
from pitstop.train.ranks import Ranks
from pitstop.train.setup import seed_everything
from pitstop.train.state.checkpoint import Checkpoint
from pitstop.train.state.random_state import restore_random_state


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnState:
    """What one rank goes on with, besides what all of them share."""

    place: Mapping[str, Any]
    random: Mapping[str, Any] | None
    """None for a rank that the saved run did not have."""

    def restore_random(self, *, seed: int, rank: int, step: int) -> None:
        """Put the generators where they were, or begin with numbers nobody has drawn."""
        if self.random is not None:
            restore_random_state(self.random)
        else:
            seed_everything(seed, rank, step)


def own_state(checkpoint: Checkpoint, ranks: Ranks) -> OwnState:
    """Give what this rank goes on with, whatever number of ranks saved the checkpoint.

    Raises:
        CheckpointError: Ranks of the saved run stood at different places in the data, so that no
            other number of ranks can go on from there.
    """
    saved_by = checkpoint.manifest.world_size
    if saved_by == ranks.world_size:
        own = checkpoint.of_rank(ranks.rank)
        return OwnState(place=own["loader"], random=own["random"])
    saved = [checkpoint.of_rank(rank) for rank in range(saved_by)]
    places = [{**own["loader"], "rank": None} for own in saved]
    if any(place != places[0] for place in places):
        raise CheckpointError(
            f"{checkpoint.path} was saved by {saved_by} ranks that stood at different places in "
            f"the data, as they do with loader.drop_last=false; resume with {saved_by} ranks"
        )
    known = ranks.rank < saved_by
    return OwnState(place=saved[0]["loader"], random=saved[ranks.rank]["random"] if known else None)


def describe_change(
    checkpoint: Checkpoint | None, config: RunConfig, ranks: Ranks, *, batches_left: int
) -> tuple[str, ...]:
    """Say what another number of ranks changes; nothing where there are as many as before.

    Args:
        checkpoint: Where the run goes on from, if anywhere.
        config: Its settings.
        ranks: Those that there are now.
        batches_left: Batches of the present epoch that each of them still gets.
    """
    saved_by = ranks.world_size if checkpoint is None else checkpoint.manifest.world_size
    if saved_by == ranks.world_size:
        return ()
    micro = config.train.batch_size * config.train.accumulate
    before, now = (
        scaled_lr(
            config.optimizer,
            batch_size=config.train.batch_size,
            accumulate=config.train.accumulate,
            devices=devices,
        ).lr
        for devices in (saved_by, ranks.world_size)
    )
    rule = config.optimizer.lr_scaling
    rate = f"stays {now:g}" if before == now else f"goes from {before:g} to {now:g}"
    return (
        f"saved by {saved_by} ranks, going on with {ranks.world_size}: effective batch goes from "
        f"{micro * saved_by} to {micro * ranks.world_size}; learning rate {rate} "
        f"(optimizer.lr_scaling {rule}); batches of the epoch left for each rank: {batches_left}; "
        "no sample of it comes twice",
    )
