"""Between how many ranks a planned model is divided, and what is said of that."""

from pitstop.config.sections import TrainSection


def ranks_of_copy(train: TrainSection, *, ranks: int) -> int:
    """Give how many ranks hold one copy of the model together; 1 where each has the whole.

    Args:
        train: Says between whom.
        ranks: All of them; under `hybrid` without `train.shard_ranks`, taken for those of a host.
    """
    if train.shard == "none":
        return 1
    return min(ranks, train.shard_ranks or ranks)


def shard_notes(train: TrainSection, *, ranks: int) -> tuple[str, ...]:
    """Say between how many ranks a model is divided, where it is."""
    size = ranks_of_copy(train, ranks=ranks)
    if size == 1:
        return ()
    assumed = (
        f"; all {size} ranks are taken to be of one host"
        if train.shard == "hybrid" and train.shard_ranks is None
        else ""
    )
    return (f"divided between {size} ranks: the step is that of the first{assumed}",)
