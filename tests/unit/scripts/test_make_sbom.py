"""The bill of materials names every pin once, and the direct dependencies as such."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts import make_sbom

ROOT = Path(__file__).parents[3]
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return make_sbom.bill(PROJECT, PINS, wheel_sha256="ab" * 32)


def test_every_pin_is_a_component_with_an_address_of_its_own(bill: dict[str, Any]) -> None:
    lines = [line for line in PINS.splitlines() if "==" in line]
    assert len(bill["components"]) == len(lines) > 50
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(set(references)) == len(references)
    for component in bill["components"]:
        assert re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[\w.%!-]+", component["purl"])
        assert any(
            line.lower()
            .replace("_", "-")
            .startswith(f"{component['name']}=={component['version']}")
            for line in lines
        )


def test_what_is_asked_for_by_name_is_a_dependency_and_says_by_whom(bill: dict[str, Any]) -> None:
    (own,) = bill["dependencies"]
    assert (
        own["ref"]
        == bill["metadata"]["component"]["bom-ref"]
        == "pkg:pypi/pitstop@" + (PROJECT["version"])
    )
    asked = {
        component["name"]: [p["value"] for p in component["properties"] if "asked" in p["name"]]
        for component in bill["components"]
    }
    assert asked["numpy"] == ["core"]
    assert "torch" in asked["torch"]
    assert {name for name, by in asked.items() if by} == {
        reference.removeprefix("pkg:pypi/").partition("@")[0] for reference in own["dependsOn"]
    }
    core = {re.split(r"[<>=\[ ;]", each)[0].lower() for each in PROJECT["dependencies"]}
    assert core <= set(asked), "every dependency of the core is pinned"


def test_the_same_sources_give_the_same_bill_and_others_another(bill: dict[str, Any]) -> None:
    again = make_sbom.bill(PROJECT, PINS, wheel_sha256="ab" * 32)
    assert json.dumps(again, sort_keys=True) == json.dumps(bill, sort_keys=True)
    other = make_sbom.bill(PROJECT, PINS, wheel_sha256="cd" * 32)
    assert other["serialNumber"] != bill["serialNumber"]
    assert bill["metadata"]["component"]["hashes"][0]["content"] == "ab" * 32


def test_markers_are_kept_and_local_versions_are_escaped() -> None:
    (one,) = make_sbom.components_of("Foo_Bar==1.0+cpu ; sys_platform == 'linux'  # chosen\n")
    assert (one["name"], one["version"], one["purl"]) == (
        "foo-bar", "1.0+cpu", "pkg:pypi/foo-bar@1.0%2Bcpu",
    )  # fmt: skip
    assert one["properties"] == [{"name": "pip:marker", "value": "sys_platform == 'linux'"}]


def test_a_line_that_is_no_pin_is_refused() -> None:
    with pytest.raises(ValueError, match="no pin: torch>=2"):
        list(make_sbom.components_of("# comment\n\ntorch>=2\n"))
