"""Messages by templates: what stands in a place is translated in its turn, the rest stays."""
# ruff: noqa: RUF001 - Chinese has commas, colons and brackets of its own

import pytest

from pitstop.report.language.translate import Translator, entries_of, translator

TABLE = """
# A comment.

{n} step(s)
{} 步

{} of {}
{1} 的 {0}

waiting took {} of {}
等待占 {1} 的 {0}

try: {}
试试：{}

do less of it; or less often
少做一些；或少做几次

slow
慢

, at {}
，在 {}

it waits{}
它在等{}

pid {n} ({w}, {n} cores)
pid {}（{}，{} 个核）
"""
SAY = Translator(entries_of(TABLE))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 step", "1 步"),
        ("2,222 steps", "2,222 步"),
        ("waiting took 87.6% ± 0.6% of 29 steps", "等待占 29 步 的 87.6% ± 0.6%"),
        ("  try: do less of it; or less often", "  试试：少做一些；或少做几次"),
        ("it waits, at train.py:26", "它在等，在 train.py:26"),
        ("it waits", "它在等"),
        ("slow; 3 steps, slow", "慢；3 步, 慢"),
        ("slow: 3 steps.", "慢：3 步。"),
        ("slow:", "慢："),
        ("pid 1 (a, 0.5 cores), pid 2 (b, 2 cores)", "pid 1（a，0.5 个核）, pid 2（b，2 个核）"),
    ],
)
def test_a_message_of_the_table_is_said_in_its_language(text: str, said: str) -> None:
    assert SAY(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "17.2%",
        "",
        "   ",
        "nobody wrote this sentence down",
        "what nobody wrote down of that other thing",  # "{} of {}" fits, its places do not
        "`for x in y: slow; slow`",
        "model = torch.compile(model); or model.compile()",
    ],
)
def test_what_the_table_lacks_stays_as_it_is(text: str) -> None:
    assert SAY(text) == text


def test_of_two_templates_the_one_that_says_more_is_meant() -> None:
    say = Translator([("{} of {}", "loose"), ("a {} of {}", "strict"), ("a cup of {}", "whole")])
    assert [say(text) for text in ("a cup of 3", "a mug of 3", "9 of 3")] == [
        "whole",
        "strict",
        "loose",
    ]


def test_english_needs_no_table() -> None:
    assert translator("en") is None


def test_parts_that_another_run_may_report_are_each_said() -> None:
    say = translator("zh")
    assert say is not None
    near = "data (10.4% ± 3.8%, reported from 10.0%), optimizer (28.3% ± 7.2%, reported from 25.0%)"
    assert say(near).count("起报") == 2
    doubted = "the largest part is optimizer (28.3%), mostly 0 (Conv2d) 50.5%, uncertain: "
    assert "uncertain" not in say(f"{doubted}modules sum to 1 us, but the forward pass takes 2 us")
