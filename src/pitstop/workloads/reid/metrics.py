"""Quality by search: every image and caption encoded once, queries made of their tokens.

What ranks gather is a table of tokens, a row for each item, zeros where another rank has it: such
tables add up, so the engine joins them as it joins any sums.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from pitstop.records.pictures import PictureRow
from pitstop.workloads.reid.data.batch import ReidBatch
from pitstop.workloads.reid.data.modalities import name_of_task, task_names
from pitstop.workloads.reid.data.queries import EvalSet, PackedImages
from pitstop.workloads.reid.model.clip import ReidModel
from pitstop.workloads.reid.protocol import METRICS, SCORES, Fuse, Gallery, evaluate_protocol
from pitstop.workloads.reid.public_protocol import evaluate_public
from pitstop.workloads.reid.ranked_pictures import draw_rankings
from pitstop.workloads.reid.reranking import Reranking
from pitstop.workloads.reid.submission import TaskRankings, order_gallery

HIGHER_IS_BETTER: Final = MappingProxyType(
    dict.fromkeys(
        (
            *METRICS,
            *(f"{score}/{name_of_task(task)}" for task in task_names() for score in SCORES),
        ),
        True,
    )
)
"""Every metric by name: averages by size, then every score of every task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemTokens:
    """Tokens of the items in a batch."""

    tokens: Tensor
    """(B, 5, d); zeros where a record has no item."""
    rows: Tensor
    """int64 (B,), places of records in the packed items."""


class RetrievalQuality:
    """Gathers tokens of all items; searches once they are all there.

    Args:
        evaluation: Items, and the queries over them.
        packed: How items were put into records.
        width: Length of a token.
        reranking: How to re-rank the gallery; None for cosines.
    """

    def __init__(
        self,
        evaluation: EvalSet,
        packed: PackedImages,
        width: int,
        *,
        reranking: Reranking | None = None,
    ) -> None:
        self._evaluation = evaluation
        self._reranking = reranking
        # A last row takes what is no item (-1), so that nothing needs to be picked out.
        self._table = torch.from_numpy(packed.table)
        self._tokens = torch.zeros(len(evaluation.images) + 1, width)
        self._model: ReidModel | None = None

    def see(self, model: nn.Module) -> None:
        """Take the model that joins tokens, as it is when all of them are there."""
        assert isinstance(model, ReidModel)
        self._model = model

    def update(self, output: ItemTokens, batch: ReidBatch) -> None:
        """Put the tokens of a batch into their rows."""
        del batch
        self._tokens = self._tokens.to(output.tokens.device)
        self._table = self._table.to(output.tokens.device)
        items = self._table[output.rows].flatten()
        self._tokens[items] = output.tokens.flatten(0, 1).float()

    def state(self) -> Tensor:
        """Give the table as one vector."""
        return self._tokens[:-1].clone().flatten()

    def result(self, state: Tensor) -> dict[str, float]:
        """Search for every query of every task; a size without any task has no scores.

        Where nobody says who is who there are none at all.
        """
        if self._evaluation.people == 0:
            return {}
        tokens, describe = self._asked(state)
        images, searches = self._evaluation.images, self._evaluation.searches
        if searches:
            return evaluate_public(tokens, images, searches, describe, reranking=self._reranking)
        gallery = Gallery(items=images.gallery, persons=images.persons[images.gallery])
        found = evaluate_protocol(
            tokens, gallery, self._evaluation.tasks, describe, reranking=self._reranking
        )
        scores = found.named() | found.by_task()
        return {name: value for name, value in scores.items() if not math.isnan(value)}

    def draw(self, state: Tensor, folder: Path, *, count: int) -> list[PictureRow]:
        """Write pictures of some queries and of what was found for them.

        Raises:
            DataError: Where an image cannot be read, or a file cannot be written.
        """
        tokens, describe = self._asked(state)
        return draw_rankings(self._evaluation, tokens, describe, folder, count=count)

    def rankings(self, state: Tensor, *, top: int | None) -> Iterator[TaskRankings]:
        """Order the gallery for every query, task by task."""
        tokens, describe = self._asked(state)
        return order_gallery(tokens, self._evaluation, describe, top=top, reranking=self._reranking)

    def _asked(self, state: Tensor) -> tuple[Tensor, Fuse]:
        """Give the tokens of all items, and the model's way from tokens to a feature."""
        assert self._model is not None, "the engine shows the model first"
        return state.view(-1, self._tokens.shape[1]), self._model.describe
