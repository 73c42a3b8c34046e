"""numpy's own tests of `numpy.memmap`, of the numpy that is installed, on `fastmap.memmap`: a plugin of pytest (``-p numpys``).

    PYTHONPATH=crates/python/tests pytest -p numpys --noconftest --pyargs $(python -m numpys)

FASTMAP_NUMPYS_CACHE   the default of `cache` for them; none, as it is. Then the folder for temporary files must be on a disk.
"""

import os

import numpy
import pytest

import fastmap

# Tests that cannot pass, and why.
EXCEPTIONS = {}
if numpy.lib.NumpyVersion(numpy.__version__) < "2.2.0":
    EXCEPTIONS["test_empty_array"] = "later versions take the shapes that it wants refused"

_cache = None


def _module():
    """Where numpy has them."""
    folder = os.path.dirname(numpy.__file__)
    core = "_core" if os.path.exists(f"{folder}/_core/tests/test_memmap.py") else "core"
    return f"numpy.{core}.tests.test_memmap"


if __name__ == "__main__":
    print(_module())
else:
    # What the tests import.
    numpy.memmap = fastmap.memmap
    if os.environ.get("FASTMAP_NUMPYS_CACHE"):
        _cache = fastmap.Cache(os.environ["FASTMAP_NUMPYS_CACHE"])
        fastmap.memmap.__new__.__kwdefaults__["cache"] = _cache


def pytest_configure(config):
    config.addinivalue_line("markers", "thread_unsafe: of numpy's own runs")


def pytest_collection_modifyitems(items):
    for item in items:
        why = EXCEPTIONS.get(item.originalname)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_sessionfinish(session):
    """With a cache it must have been used."""
    if _cache is not None and session.testscollected and not _cache.stats()["misses"]:
        raise pytest.UsageError(f"none of the tests' arrays was in the cache: {_cache.stats()}")
