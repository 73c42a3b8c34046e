"""Limits on memory."""

import errno
import os
import sys
import threading
import uuid
import warnings
import weakref
from typing import Callable, List, Optional, Union

from . import _native

__all__ = ["Cache"]

# By token, so that arrays which share a cache share one after unpickling, too.
_caches: "weakref.WeakValueDictionary[str, Cache]" = weakref.WeakValueDictionary()
# One thread at a time unpickles one that is not there yet; and no child is forked meanwhile, which would wait for it.
_unpickling = threading.RLock()
os.register_at_fork(before=_unpickling.acquire, after_in_parent=_unpickling.release, after_in_child=_unpickling.release)
# Lists of somebody who counts what all do, to which those are added that are made meanwhile.
watching: "List[List[Cache]]" = []


def size_of(size: Union[int, str], read: Callable[[str], int] = _native.bytes_of) -> int:
    """Bytes of a size such as 1048576 or "1MiB"; of a capacity, too, such as "50%", with `_native.capacity_of`."""
    if isinstance(size, str):
        size = read(size)
    elif isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"a size is an int or a str such as '1GiB', not {type(size).__name__}")
    size = size.__index__()
    if not 0 <= size < 1 << 63:
        raise ValueError(f"a size of {size} bytes is out of range")
    return size


class Cache(_native.Cache):
    __doc__ = _native.Cache.__doc__

    _token: str

    def __new__(cls, capacity: Union[int, str]) -> "Cache":
        self = super().__new__(cls, size_of(capacity, _native.capacity_of))
        self._token = uuid.uuid4().hex
        _caches[self._token] = self
        for caches in list(watching):
            caches.append(self)
        return self

    def resize(self, capacity: Union[int, str]) -> None:
        """Changes the capacity while the cache is in use.

        Less is reached when this returns: pages leave memory, and those that were stored to are written first.

        Parameters
        ----------
        capacity : int or str
            Bytes, a size such as "1GiB", or a share of memory such as "50%".

        Raises
        ------
        OSError
            EBUSY more is pinned than that; ENOSPC, EIO and what else write(2) has: then nothing is lost.
        """
        self._resize(size_of(capacity, _native.capacity_of))

    def __reduce__(self):
        # In another process it is a cache of the same size: a budget of its own.
        return _shared, (self._token, self.capacity)


def as_cache(cache: "Union[None, int, str, Cache]", is_of_object: bool = False) -> "Optional[Cache]":
    """A cache as it is, or a new one of a size; None in a child made by fork(2), where there is none, and where objects need none."""
    if cache is None or isinstance(cache, Cache):
        return cache
    try:
        return Cache(cache)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        if not is_of_object:
            warn(error)
        return None


def warn(error: OSError) -> None:
    """Says that something has no cache, and why."""
    why = str(error.strerror).replace(": map it without FM_MAP_CACHED", "")
    text = f"{why}: mapped by the kernel, without a limit on memory (`fastmap doctor` looks at what is missing)"
    frame, level = sys._getframe(1), 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fastmap":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def _shared(token: str, capacity: int) -> "Optional[Cache]":
    with _unpickling:
        cache = _caches.get(token)
        if cache is None:
            cache = as_cache(capacity)
            if cache is not None:
                cache._token = token
                _caches[token] = cache
        return cache


def all_caches() -> "list[Cache]":
    """Those that there are in this process."""
    # References first: other threads make caches meanwhile.
    caches = [reference() for reference in _caches.valuerefs()]
    return list({id(cache): cache for cache in caches if cache is not None}.values())
