"""People who do not exist: what they look like and wear, and what is said of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from pitstop.workloads.draws import Draws

T = TypeVar("T")
Colour = tuple[int, int, int]

_PALETTE: Final[dict[str, Colour]] = {
    "black": (28, 28, 32),
    "white": (226, 224, 218),
    "grey": (128, 128, 130),
    "red": (176, 36, 40),
    "blue": (42, 72, 160),
    "navy": (26, 34, 74),
    "green": (46, 110, 58),
    "yellow": (214, 180, 52),
    "brown": (104, 70, 44),
    "beige": (196, 172, 132),
    "pink": (212, 130, 150),
    "purple": (96, 52, 118),
}
_HAIR: Final[dict[str, Colour]] = {
    "black": (24, 20, 18),
    "brown": (84, 54, 32),
    "blond": (190, 156, 92),
    "grey": (150, 148, 146),
}
_SKIN: Final[tuple[Colour, ...]] = ((232, 190, 164), (196, 146, 110), (120, 80, 56))
_SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    "navy": ("navy", "dark blue", "dark"),
    "grey": ("grey", "gray", "dull"),
    "black": ("black", "dark"),
    "white": ("white", "light", "pale"),
    "beige": ("beige", "tan", "light brown"),
    "purple": ("purple", "violet"),
    "t-shirt": ("t-shirt", "tee", "short-sleeved top"),
    "shirt": ("shirt", "long-sleeved top"),
    "jacket": ("jacket", "zipped top"),
    "coat": ("coat", "long jacket"),
    "trousers": ("trousers", "pants", "long pants"),
    "shorts": ("shorts", "short pants"),
    "backpack": ("backpack", "rucksack"),
    "handbag": ("handbag", "bag"),
    "shoulder bag": ("shoulder bag", "cross-body bag", "bag"),
    "beanie": ("beanie", "woollen hat", "hat"),
    "cap": ("cap", "baseball cap", "hat"),
    "striped": ("striped", "with horizontal stripes"),
    "pinstriped": ("pinstriped", "with vertical stripes"),
    "checked": ("checked", "plaid"),
}
_SAID: Final = 0.72
"""Probability of mentioning what could be mentioned: captions alone cannot tell everybody apart."""

TOPS: Final = ("t-shirt", "shirt", "jacket", "coat")
BOTTOMS: Final = ("trousers", "shorts", "skirt")
PATTERNS: Final = ("plain", "plain", "striped", "pinstriped", "checked", "logo")
BAGS: Final = ("none", "none", "backpack", "shoulder bag", "handbag")
HATS: Final = ("none", "none", "none", "cap", "beanie")
HAIR_STYLES: Final = ("short", "short", "long", "bald")


class Random(Draws):
    """What people are drawn from."""

    def choice(self, options: Sequence[T]) -> T:
        """Draw one of several."""
        return options[self.below(len(options))]

    def noise(self, shape: tuple[int, ...]) -> npt.NDArray[np.int16]:
        """Draw whole numbers from -255 to 255, the middle ones most often."""
        count = int(np.prod(shape))
        raw = self._bits.random_raw(-(-count // 4)).astype("<u8").view(np.uint8)
        pairs = raw[: 2 * count].reshape(2, count).astype(np.int16)
        return (pairs[0] + pairs[1] - 255).reshape(shape)

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """Put values into another order."""
        order = np.argsort(self._bits.random_raw(len(values)), kind="stable")
        return [values[place] for place in order.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Garment:
    """Something worn: its colour, by name and as it is, and how it reflects infrared."""

    name: str
    colour: str
    level: Colour
    infrared: int
    """Depends on the fabric and its dye, not on how light the colour looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Everything that makes a person recognisable."""

    height: float
    """Share of the tallest."""
    build: float
    """Width as a share of the usual."""
    skin: Colour
    hair: Garment
    """`name` is the style."""
    top: Garment
    pattern: str
    second: Colour
    """Colour of the pattern."""
    period: int
    """Width of stripes and squares, in thousandths of the height."""
    bottom: Garment
    shoes: Garment
    bag: Garment
    hat: Garment
    is_woman: bool


def make_person(random: Random) -> Person:
    """Invent somebody."""
    return Person(
        height=random.uniform(0.84, 1.0),
        build=random.uniform(0.82, 1.22),
        skin=random.choice(_SKIN),
        hair=_hair(random),
        top=_garment(random, TOPS),
        pattern=random.choice(PATTERNS),
        second=_shade(random, _PALETTE[random.choice(tuple(_PALETTE))]),
        period=24 + random.below(40),
        bottom=_garment(random, BOTTOMS),
        shoes=_garment(random, ("shoes", "trainers", "boots")),
        bag=_garment(random, BAGS),
        hat=_garment(random, HATS),
        is_woman=random.chance(0.5),
    )


def make_look_alike(random: Random, other: Person) -> Person:
    """Invent somebody who differs from another in one thing that can be seen."""
    fresh = make_person(random)
    change = random.choice(("top", "bottom", "bag", "hat", "pattern"))
    if change == "pattern":
        others = [pattern for pattern in PATTERNS if pattern != other.pattern]
        return replace(other, pattern=random.choice(others))
    new: Garment = getattr(fresh, change)
    old: Garment = getattr(other, change)
    while (new.name, new.colour) == (old.name, old.colour):
        new = getattr(make_person(random), change)
    return replace(other, **{change: new})


def describe(person: Person, view: str, random: Random) -> str:
    """Say in English what can be seen; some is left out, some is said in other words."""
    words = ("woman", "lady", "person") if person.is_woman else ("man", "guy", "person")
    parts = [
        text for share, text in _remarks(person, view, random) if text and random.chance(share)
    ]
    return _message(random.choice(words), view, random.shuffled(parts), random)


def _remarks(person: Person, view: str, random: Random) -> Iterator[tuple[float, str]]:
    """Give what could be said and how likely it is to be; nothing for what cannot be seen."""
    has_pattern = person.pattern not in ("plain", "logo") and random.chance(_SAID)
    pattern = f"{_word(person.pattern, random)} " if has_pattern else ""
    yield _SAID + 0.15, f"wears a {pattern}{_worn(person.top, random)}"
    article = "a " if person.bottom.name == "skirt" else ""
    yield _SAID, f"{random.choice(('has', 'is in'))} {article}{_worn(person.bottom, random)}"
    yield _SAID / 2, f"has {_worn(person.shoes, random)}"
    if person.bag.name != "none" and (person.bag.name != "backpack" or view != "front"):
        yield _SAID, f"carries a {_worn(person.bag, random)}"
    if person.hat.name != "none":
        yield _SAID, f"has a {_worn(person.hat, random)} on"
    else:
        hair = person.hair.name
        yield _SAID / 2, "is bald" if hair == "bald" else f"has {hair} hair"
    if person.pattern == "logo" and view == "front":
        yield _SAID / 2, "has a print on the chest"
    if person.build > 1.1:
        yield _SAID / 2, f"is {random.choice(('stout', 'broad', 'heavy'))}"


def _word(name: str, random: Random) -> str:
    return random.choice(_SYNONYMS.get(name, (name,)))


def _worn(garment: Garment, random: Random) -> str:
    return f"{_word(garment.colour, random)} {_word(garment.name, random)}"


def _message(who: str, view: str, parts: list[str], random: Random) -> str:
    seen = {"front": "facing the camera", "back": "seen from behind", "side": "from the side"}
    opening = f"A {who} {seen[view]}" if random.chance(0.4) else f"The {who}"
    if not parts:
        return f"{opening} is walking."
    if len(parts) == 1:
        return f"{opening} {parts[0]}."
    return f"{opening} {', '.join(parts[:-1])} and {parts[-1]}."


def _garment(random: Random, names: Sequence[str]) -> Garment:
    colour = random.choice(tuple(_PALETTE))
    return Garment(
        name=random.choice(names),
        colour=colour,
        level=_shade(random, _PALETTE[colour]),
        infrared=60 + random.below(170),
    )


def _hair(random: Random) -> Garment:
    colour = random.choice(tuple(_HAIR))
    return Garment(
        name=random.choice(HAIR_STYLES),
        colour=colour,
        level=_HAIR[colour],
        infrared=70 + random.below(60),
    )


def _shade(random: Random, colour: Colour) -> Colour:
    red, green, blue = (min(250, max(8, level + random.below(33) - 16)) for level in colour)
    return red, green, blue
