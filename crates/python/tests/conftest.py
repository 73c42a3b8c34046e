"""A folder on a disk for the tests' files: the system's temporary one may be a tmpfs, where a cache has nothing to do."""

import os
import shutil
import tempfile

import pytest

_made = []


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if hasattr(config, "workerinput"):
        return  # Of pytest-xdist: its parent has seen to it.
    if config.option.basetemp is None:
        folder = tempfile.mkdtemp(prefix="fastmap-python.", dir=os.environ.get("SCRATCH", "/var/tmp"))
        _made.append(folder)
        os.chmod(folder, 0o755)  # Tests become nobody.
        config.option.basetemp = os.path.join(folder, "tests")
    folder = os.path.dirname(os.path.abspath(config.option.basetemp))
    probe = os.path.join(folder, "direct")
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        raise pytest.UsageError(f"no direct I/O in {folder} ({error}): name a folder on a disk in SCRATCH") from None
    os.unlink(probe)
    # Of children and libraries.
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def pytest_unconfigure():
    for folder in _made:
        shutil.rmtree(folder, ignore_errors=True)
