"""Every wrong claim of the guides is led to the tests that answer it, and those tests are there."""

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
CLAIMS: list[dict[str, Any]] = tomllib.loads((TESTS / "data" / "claims.toml").read_text())["claim"]
LISTED = {"bev": 18, "deblur": 24, "reid": 17}


def name_of(claim: dict[str, Any]) -> str:
    return f"{claim['guide']}-{claim['number']}"


@cache
def functions_of(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def is_skipped(function: ast.FunctionDef) -> bool:
    return any(
        "skip" in ast.unparse(mark) or "xfail" in ast.unparse(mark)
        for mark in function.decorator_list
    )


def test_all_claims_are_listed_once() -> None:
    assert [name_of(claim) for claim in CLAIMS] == [
        f"{guide}-{number}" for guide, count in LISTED.items() for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("claim", CLAIMS, ids=name_of)
def test_the_tests_of_a_claim_are_there_and_run(claim: dict[str, Any]) -> None:
    assert claim["tests"]
    for place in claim["tests"]:
        path, _, name = place.partition("::")
        function = functions_of(TESTS / path)[name]
        assert not is_skipped(function)
        assert any(isinstance(node, (ast.Assert, ast.With)) for node in ast.walk(function)), name
