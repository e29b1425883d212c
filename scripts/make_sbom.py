"""Write the bill of materials of a release: what it was tested with, as CycloneDX 1.6 in JSON.

    python scripts/make_sbom.py dist/pitstop-0.1.0-py3-none-any.whl > dist/pitstop-0.1.0.cdx.json

Components are the pins of constraints.txt, those of all extras included; direct dependencies are
named as such, with the extra that asks for them. The same sources give the same bytes.
"""

import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)(?:\s*;\s*(.+))?$")
_NAME = re.compile(r"^[A-Za-z0-9._-]+")

Json = dict[str, Any]


def main() -> int:
    """Print the bill; a wheel's hash is in it where one is given."""
    wheel = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    digest = None if wheel is None else hashlib.sha256(wheel.read_bytes()).hexdigest()
    json.dump(bill(project, pins, wheel_sha256=digest), sys.stdout, indent=2, sort_keys=True)
    print()
    return 0


def bill(project: Mapping[str, Any], pins: str, *, wheel_sha256: str | None) -> Json:
    """Make the bill.

    Args:
        project: The table `project` of pyproject.toml.
        pins: Text of constraints.txt.
        wheel_sha256: Of the wheel that the bill is for.
    """
    components = list(components_of(pins))
    direct = _direct(project)
    references = {component["name"]: component["bom-ref"] for component in components}
    for component in components:
        for asked_by in direct.get(component["name"], ()):
            component["properties"].append({"name": "pitstop:asked-for-by", "value": asked_by})
    own = _component(project["name"], project["version"], "application")
    own["licenses"] = [{"license": {"id": project["license"]}}]
    if wheel_sha256 is not None:
        own["hashes"] = [{"alg": "SHA-256", "content": wheel_sha256}]
    needed = sorted(references[name] for name in direct if name in references)
    made: Json = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": needed}],
    }
    content = json.dumps(made, sort_keys=True)
    made["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, content).urn
    return made


def components_of(pins: str) -> Iterator[Json]:
    """Give a component for each pin.

    Raises:
        ValueError: A line is neither a pin nor a comment.
    """
    for line in pins.splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _PIN.match(text)
        if found is None:
            raise ValueError(f"no pin: {line}")
        name, version, marker = found.groups()
        component = _component(_normal(name), version, "library")
        component["properties"] = []
        if marker is not None:
            component["properties"].append({"name": "pip:marker", "value": marker})
        yield component


def _component(name: str, version: str, kind: str) -> Json:
    # A plus stands before the local part of a version, and is a space where an address is read.
    reference = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
    return {"type": kind, "name": name, "version": version, "purl": reference, "bom-ref": reference}


def _normal(name: str) -> str:
    """A package's one name, however it was written."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _direct(project: Mapping[str, Any]) -> dict[str, list[str]]:
    """Who asks for a package: the core, or extras by name."""
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    asked: dict[str, list[str]] = {}
    for group, requirements in groups.items():
        for requirement in requirements:
            found = _NAME.match(requirement)
            assert found is not None, requirement
            asked.setdefault(_normal(found[0]), []).append(group)
    return asked


if __name__ == "__main__":
    raise SystemExit(main())
