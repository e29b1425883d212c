"""Between how many ranks a planned model is divided, and what is said of that."""

from pitstop.config.sections import TrainSection
from pitstop.errors import ConfigError


def dividing_ranks(train: TrainSection, *, ranks: int) -> int:
    """Give how many ranks hold one copy of the model together; 1 where each has the whole.

    Args:
        train: Says between whom.
        ranks: All of them.

    Raises:
        ConfigError: Where the run would refuse them, or the plan cannot know the ranks of a host.
    """
    if train.shard == "none" or ranks == 1:
        return 1
    if train.shard == "hybrid" and train.shard_ranks is None:
        raise ConfigError(
            "train.shard is hybrid, and a plan does not know how many ranks a host has; set "
            "train.shard_ranks to that number"
        )
    # Here, where it is needed: importing what it stands on takes half a second.
    from pitstop.train.model.shard import ranks_of_copy

    return ranks_of_copy(train, world_size=ranks, local_world_size=ranks)


def shard_notes(train: TrainSection, *, ranks: int) -> tuple[str, ...]:
    """Say between how many ranks a model is divided, where it is."""
    size = dividing_ranks(train, ranks=ranks)
    if size == 1:
        return ()
    return (f"divided between {size} ranks: memory and time are those of rank 0",)
