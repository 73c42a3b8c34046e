"""What Dask is told of mapped arrays: they are names of files. They travel, weigh and are compared as such, however large the files are."""

import contextlib
import os
import sys
import uuid
from typing import Any, Tuple

import numpy as np

# Bytes of a pickled array, about.
_PICKLED = 512


class Told(type):
    """Of classes that Dask is told of when it first looks one up, in whatever order they were imported: its registries go by `__mro__`."""

    @property
    def __mro__(cls) -> Tuple[type, ...]:
        mro = type.__dict__["__mro__"].__get__(cls)
        registered = next(it for it in reversed(mro) if type(it) is Told)
        for module, name, function in (
            ("dask.sizeof", "sizeof", _size_of),
            ("dask.base", "normalize_token", _token_of),
            ("distributed.protocol.serialize", "dask_serialize", _refuse),
        ):
            registry = getattr(sys.modules.get(module), name, None)
            if registry is not None:
                registry.register(registered, function)
        return mro


class _Pickled(NotImplementedError, TypeError):
    """To Dask: this is to be pickled."""


def _size_of(array: Any) -> int:
    """Its pages are the cache's: a worker that is short of memory gains nothing if it writes the array to disk."""
    return _PICKLED if array._is_named() else array.nbytes


def _token_of(array: Any) -> Any:
    """Where it is in which file, as that is now: Dask's own way reads all of it. What may be stored to is like nothing else."""
    if array._mmap is None:
        from dask.base import normalize_token

        return normalize_token(array.view(np.ndarray))
    if array._is_named() and array.mode == "r":
        _, (kind, place, view) = array.__reduce_ex__(2)
        if array._mmap.url is not None:
            # With its version.
            return repr((kind, place[:-1], view))
        with contextlib.suppress(OSError):
            file = os.stat(array.filename)
            return repr((kind, place[:-1], view, file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns))
    return uuid.uuid4().hex


def _refuse(array: Any, context: Any = None) -> None:
    """Dask's own way for arrays is to send the bytes."""
    raise _Pickled("fastmap.memmap is pickled")
