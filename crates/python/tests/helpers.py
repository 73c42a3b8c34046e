"""What the tests share."""

import os
import subprocess
import sys
import sysconfig
import textwrap
import time

import numpy as np
import pytest

PAGE = 4096
SMALLEST = "64KiB"
# Whether the interpreter has a global lock.
IS_LOCKED = not sysconfig.get_config_var("Py_GIL_DISABLED")
CACHES = [None, SMALLEST, "1MiB"]


def ended(code, *arguments, timeout=60, **options):
    """A program, in an interpreter of its own, until its end."""
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def printed(code, *arguments, **options):
    """What a program prints that must end well."""
    done = ended(code, *arguments, **options)
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def script_printed(folder, code, *arguments, **options):
    """Likewise, of a script in a file: its functions can be found by the processes that it starts."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    command = [sys.executable, "-X", "faulthandler", str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=options.pop("timeout", 60), **options)
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def until(condition, what):
    """Waits for something that happens by itself."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.01)


def cannot_run(why):
    """Skips; where CI runs, fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"cannot run here: {why}")
    pytest.skip(why)


def refusal(call):
    """The exception that a call raises, which must be one."""
    try:
        result = call()
    except Exception as error:
        return error
    pytest.fail(f"was not refused, but returned {result!r:.200}")


def noise(count, seed=0):
    """That many random bytes."""
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def write(path, content):
    """A file of these bytes."""
    with open(path, "wb") as file:
        file.write(content)
    return path


def of_process(name, pid="self"):
    """A number of /proc/PID/status, such as VmRSS."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))
