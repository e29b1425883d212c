"""A table of chosen length: the largest part is opened first, and what is left out is said."""

from dataclasses import replace

from pitstop.doctor.estimate.module_table import module_table
from pitstop.doctor.facts import Facts
from pitstop.records.distribution import Distribution
from pitstop.records.module_table import ModuleTable
from pitstop.records.script import ModuleKind, Modules, ModuleTime
from pitstop.records.summary import SpanSummary
from tests.unit.doctor.records import facts


def module(name: str, forward: int, backward: int | None, parent: int | None = None) -> ModuleTime:
    return ModuleTime(
        name=name, kind="Block", forward_us=forward, backward_us=backward, parent=parent
    )


def stages(count: int, *, inside: int = 0) -> list[ModuleTime]:
    """Stages of which each is shorter than the one before, with equal parts inside."""
    made = [module(f"stage{n}", 1000 - 10 * n, 2000 - 20 * n) for n in range(count)]
    for place in range(count):
        made += [module(f"stage{place}.{n}", 100, 200, place) for n in range(inside)]
    return made


def table(modules: list[ModuleTime], most: int | None = 12, **whole: int) -> ModuleTable:
    reading = Modules(step=5, modules=tuple(modules), **whole)  # pyright: ignore[reportArgumentType]
    found = module_table(facts({"forward": 1}, readings=[reading]), most=most)
    assert found is not None
    return found


def test_the_largest_is_opened_while_there_is_room() -> None:
    found = table(stages(3, inside=4), most=8)
    assert [row.name for row in found.rows] == [
        "stage0",
        *(f"stage0.{n}" for n in range(4)),
        "stage1",
        "stage2",
    ]
    assert [row.depth for row in found.rows] == [0, 1, 1, 1, 1, 0, 0]


def test_no_table_is_longer_than_it_was_asked_to_be() -> None:
    for most in range(2, 30):
        found = table(stages(9, inside=6), most=most)
        assert len(found.rows) <= most
        outermost = [row for row in found.rows if row.depth == 0]
        whole = sum(row.forward_us for row in outermost)
        assert whole == sum(1000 - 10 * n for n in range(9)), "others are summed up"
    assert len(table(stages(9, inside=6), most=None).rows) == 9 + 54


def test_wrappers_around_the_whole_are_passed_through() -> None:
    wrapped = [module("model", 1000, 2000), module("model.a", 600, 1200, 0)]
    wrapped += [module("model.b", 400, 800, 0), module("model.a.x", 600, 1200, 1)]
    assert [row.name for row in table(wrapped).rows if row.depth == 0] == ["model.a", "model.b"]


def test_what_the_parts_cover_is_said_of_each_pass() -> None:
    found = table(
        [module("a", 600, 900), module("b", 300, None)], forward_us=1000, backward_us=1800
    )
    assert (found.covers_forward, found.covers_backward) == (0.9, 0.5)
    ahead = table([module("a", 600, None)], forward_us=1000)
    assert (ahead.covers_forward, ahead.covers_backward) == (0.6, None)
    older = table([module("a", 600, 900)])
    assert older.covers_forward is None


def test_classes_in_several_places_are_summed_up() -> None:
    kinds = (
        ModuleKind(kind="Align", places=7, forward_us=100, backward_us=200),
        ModuleKind(kind="Tail", places=1, forward_us=500, backward_us=500),
    )
    reading = Modules(
        step=5, modules=(module("a", 1000, 2000),), forward_us=1000, backward_us=2000, kinds=kinds
    )
    found = module_table(facts({"forward": 1}, readings=[reading]))
    assert found is not None
    assert [(kind.kind, kind.places, kind.share) for kind in found.kinds] == [("Align", 7, 0.1)]


def test_a_record_that_names_a_parent_that_is_not_there_is_laid_flat() -> None:
    odd = [module("a", 10, 10, parent=5), module("b", 10, 10, parent=1), module("c", 1, 1, -3)]
    assert {row.name for row in table(odd).rows} == {"a", "b", "c"}


def test_the_engines_named_parts_are_a_table_as_well() -> None:
    parts = {
        ("forward",): 5_000,
        ("forward", "stage1"): 3_000,
        ("forward", "stage1", "align"): 1_000,
        ("forward", "tail"): 1_500,
        ("backward",): 10_000,
        ("backward", "stage1"): 7_000,
        ("backward", "stage1", "recompute"): 2_000,
    }
    found = module_table(_timed(parts))
    assert found is not None
    assert [(row.name, row.depth, row.forward_us) for row in found.rows] == [
        ("stage1", 0, 3_000),
        ("align", 1, 1_000),
        ("tail", 0, 1_500),
    ]
    assert found.rows[0].recompute_us == 2_000
    assert found.rows[2].backward_us is None
    assert (found.covers_forward, found.covers_backward) == (0.9, 0.7)


def _timed(parts: dict[tuple[str, ...], int]) -> Facts:
    """A run of two steps whose spans all have one length."""
    spans = tuple(
        SpanSummary(
            path=path,
            calls=2,
            host=Distribution.of([us, us]),
            host_self_us=0,
            device=None,
            share=0.0,
        )
        for path, us in parts.items()
    )
    made = facts({"forward": 1})
    return replace(made, summary=replace(made.summary, spans=spans))
