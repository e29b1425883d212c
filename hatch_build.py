"""The long description for a package index: README.md with links that lead somewhere from there.

A package index shows the README away from the repository, so that `docs/quickstart.md` leads
nowhere. Where PITSTOP_REPOSITORY names the repository's address, as the release recipe in
CONTRIBUTING.md does, links become addresses in it. Without it what a link says stays, and pictures
are left out: a wheel that somebody builds from a checkout claims no address.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<bang>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<place>[^)]+)\)")
_MARK = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def long_description(readme: str, repository: str | None, version: str) -> str:
    """Give the README as a package index shall show it."""

    def address(link: re.Match[str]) -> str:
        if repository is None:
            return "" if link["bang"] else link["text"]
        kind = "raw" if link["bang"] else "blob"
        place = f"{repository.rstrip('/')}/{kind}/v{version}/{link['place']}"
        return f"{link['bang']}[{link['text']}]({place})"

    return _LINK.sub(address, _MARK.sub("", readme))


class LongDescription(MetadataHookInterface):
    """Called by hatchling for whoever builds or installs."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict) -> None:
        repository = os.environ.get("PITSTOP_REPOSITORY") or None
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = long_description(readme, repository, str(metadata["version"]))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if repository is not None:
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/tree/v{metadata['version']}/docs",
                "Changelog": f"{repository}/blob/v{metadata['version']}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
