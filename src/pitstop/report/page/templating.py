"""How pages are made of templates: everything escaped, nothing undefined, policies by hash."""

import base64
import hashlib
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from pitstop.report.page.svg import shown

_LOADER: Final = PackageLoader("pitstop", "report/templates")


def environment() -> Environment:
    """Make what renders the templates of pages."""
    return Environment(
        loader=_LOADER,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )


def source(templates: Environment, name: str) -> str:
    """Give a style or a script as it is."""
    return _LOADER.get_source(templates, name)[0]


def policy_hash(text: str) -> str:
    """Name a style or a script in a page's security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _finalize(value: object) -> object:
    """Make text from a record fit for a page; escaping comes after this."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return shown(value)
    return value
