"""Files and objects larger than memory as arrays: memory-mapped I/O with a limit on memory, and with many reads at a time.

`memmap` is `numpy.memmap` with a `cache`; `gather` copies rows at the depth of the device; `open` gives the bytes alone; `safetensors` reads
weights; `steer` helps what other libraries have mapped. All but the last take the URL of an object of a store
(S3, GCS, Azure, HTTP, HDFS), too. The command `fastmap run`, or ``python -m fastmap run script.py``, does it for programs that nobody changes.

Examples
--------
>>> import fastmap, numpy as np
>>> table = fastmap.memmap("table.f32", np.float32, "w+", shape=(1000, 128), cache="1MiB")
>>> table[7] = 1
>>> table.flush()
>>> fastmap.gather(table, [7, 7, 3])[:, 0]
array([1., 1., 0.], dtype=float32)
"""

import faulthandler as _faulthandler
import functools as _functools

from typing import Optional as _Optional

from . import _native
from ._cache import Cache
from ._mapping import Mapping, open
from ._memmap import gather, memmap
from ._native import __version__
from ._safetensors import SafeTensors, safetensors

__all__ = ["Cache", "Mapping", "SafeTensors", "gather", "memmap", "open", "report", "safetensors", "steer", "__version__"]

# What they change comes after the engine's handler of SIGBUS, without which the next miss would end the interpreter.
for _call in _faulthandler.enable, _faulthandler.disable:
    setattr(_faulthandler, _call.__name__, _functools.update_wrapper(_functools.partial(_native.beneath, _call), _call))
del _call


def steer() -> None:
    """Steers the files that this process has mapped, whoever mapped them: numpy.memmap, Arrow, torch, safetensors, datasets.

    A thread looks at which pages are touched. While memory is short or storage is slow, it tells the kernel what to read ahead, what to keep,
    and where not to read around a miss. No byte changes, and the mappings stay the kernel's. It does so until the process ends. A second call
    does nothing. A child made by fork(2) calls it anew: no thread of its parent is in it.

    The thread counts as one of the process (`/proc/self/task`), and system call filters for all threads (seccomp) apply to it. It ends within
    half a second when the process changes its user, capabilities, filters or ``PR_SET_NO_NEW_PRIVS``, and when there is no memory for it
    (``RLIMIT_AS``); `report` says so. It opens a few of the files that are mapped where they are on slow storage, and leaves them open.

    Examples
    --------
    >>> fastmap.steer()
    """
    _native.steer()


def report() -> _Optional[str]:
    """What `steer` has done so far, in one line; None if that is nothing yet.

    Returns
    -------
    str or None

    Examples
    --------
    >>> fastmap.report()
    """
    return _native.report()


def load_ipython_extension(ipython) -> None:
    """``%load_ext fastmap``: the cell magic ``%%fastmap``, which says what a cell missed, read and kept in memory."""
    from ._magic import register

    register(ipython)
