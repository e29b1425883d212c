"""What a package offers is what its `__all__` says: nothing by accident, nothing missing."""

import inspect
from importlib import import_module
from types import ModuleType

import pytest
from scripts.make_api_docs import MODULES

import pitstop
import pitstop_probe


@pytest.mark.parametrize("package", [pitstop, pitstop_probe], ids=lambda package: package.__name__)
def test_all_lists_exactly_the_public_names(package: ModuleType) -> None:
    ours = {
        name
        for name in dir(package)
        if not name.startswith("_")
        and name != "TYPE_CHECKING"
        and not inspect.ismodule(thing := getattr(package, name))
        # Borrowed names, such as a function of the standard library, are nobody's promise.
        and (getattr(thing, "__module__", None) or "pitstop").startswith("pitstop")
    }
    listed = set(package.__all__)
    assert listed - {"__version__"} == ours
    assert len(package.__all__) == len(listed)
    assert all(hasattr(package, name) for name in listed)


def test_the_version_can_be_asked_for() -> None:
    assert "__version__" in pitstop.__all__
    assert pitstop.__version__.count(".") == 2


def test_what_the_package_offers_is_found_where_it_lives() -> None:
    for name in set(pitstop.__all__) - {"__version__"}:
        assert getattr(pitstop, name).__module__.startswith("pitstop."), name


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Prefetcher'"):
        getattr(pitstop, "Prefetcher")  # noqa: B009 - the type checker knows that there is none


def test_what_the_reference_names_is_where_it_says() -> None:
    named = [(module, name) for module, names in MODULES.items() for name in names or ()]
    assert ("pitstop.workloads.deblur.spike", "read_dat") in named
    missing = [where for where in named if not hasattr(import_module(where[0]), where[1])]
    assert missing == []
