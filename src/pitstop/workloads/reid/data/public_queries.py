"""What the protocols of Market-1501, MSMT17 and SYSU-MM01 ask, over every image once.

Market-1501 and MSMT17 ask once, colour for colour. SYSU-MM01 asks with every infrared image, among
one colour image of each person and camera; which one is drawn ten times over. Its draws are those
of the public baselines: Python's own generator, seeded by the number of the draw, one choice for
each person and camera in their order.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.errors import DataError
from pitstop.workloads.reid.data.modalities import NIR, RGB
from pitstop.workloads.reid.data.public_sets import SYSU_VISIBLE, Photograph, PublicSet

Ints = npt.NDArray[np.int64]

DRAWS: Final = 10
SYSU_SEARCHES: Final = {"all": SYSU_VISIBLE, "indoor": (1, 2)}
"""Cameras of the gallery, by the name of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSearch:
    """One way of asking; its scores are means over its galleries."""

    name: str
    """Follows the names of scores; empty where a set has one search only."""
    modality: str
    """Of the queries."""
    queries: Ints
    """Places among the items."""
    galleries: tuple[Ints, ...]
    """The same, one for each draw."""
    by_person: bool
    """Whether r1 to r20 count people, not images, and camera 3 never looks at camera 2, which
    hangs beside it (SYSU-MM01); otherwise images of the query's person and camera are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicQueries:
    """The images that a protocol needs, each once, and what it asks of them."""

    images: tuple[Photograph, ...]
    """Colour first."""
    searches: tuple[PublicSearch, ...]


def public_queries(found: PublicSet) -> PublicQueries:
    """Give the searches of a set.

    Raises:
        DataError: Where it has no query or no gallery.
    """
    for part, images in (("query", found.query), ("gallery", found.gallery)):
        if not images:
            raise DataError(f"{found.layout.folder} ({found.layout.kind}) has no {part} images")
    return _sysu_queries(found) if found.layout.kind == "sysu_mm01" else _one_search(found)


def draw_gallery(gallery: Sequence[Photograph], cameras: Sequence[int], draw: int) -> list[int]:
    """Choose an image of each person and camera, and give their places.

    Args:
        gallery: By person, then camera, then name.
        cameras: Those that take part.
        draw: Its number, which decides the choice.
    """
    own: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, image in enumerate(gallery):
        if image.camera in cameras:
            own[image.person, image.camera].append(place)
    choice = random.Random(draw).choice  # noqa: S311 - the published draws are of this generator
    return [choice(places) for places in own.values()]


def _one_search(found: PublicSet) -> PublicQueries:
    images = (*found.query, *found.gallery)
    places = np.arange(len(images))
    search = PublicSearch(
        name="",
        modality=RGB,
        queries=places[: len(found.query)],
        galleries=(places[len(found.query) :],),
        by_person=False,
    )
    return PublicQueries(images=images, searches=(search,))


def _sysu_queries(found: PublicSet) -> PublicQueries:
    drawn = {
        name: [draw_gallery(found.gallery, cameras, draw) for draw in range(DRAWS)]
        for name, cameras in SYSU_SEARCHES.items()
    }
    # Most images are never drawn, and need no description.
    kept = sorted({place for draws in drawn.values() for draw in draws for place in draw})
    item_of = {place: item for item, place in enumerate(kept)}
    images = (*(found.gallery[place] for place in kept), *found.query)
    searches = tuple(
        PublicSearch(
            name=name,
            modality=NIR,
            queries=np.arange(len(kept), len(images)),
            galleries=tuple(np.array([item_of[one] for one in draw], np.int64) for draw in draws),
            by_person=True,
        )
        for name, draws in drawn.items()
        if draws[0]
    )
    return PublicQueries(images=images, searches=searches)
