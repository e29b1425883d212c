"""Options of the whole test suite."""

import pytest
from hypothesis import settings

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write golden files anew from what the code does now, instead of comparing",
    )
