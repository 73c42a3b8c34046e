"""Arrays over files and objects."""

import contextlib
import errno
import io
import mmap
import operator
import os
import sys
import weakref
from pathlib import Path
from typing import Any, Optional, Tuple, Union

import numpy as np

from . import _native
from ._cache import Cache, as_cache
from ._dask import Told
from ._mapping import CacheLike, Mapping, SizeLike, is_url, map_file, map_object

__all__ = ["gather", "memmap"]

_NAMES = {"readonly": "r", "copyonwrite": "c", "readwrite": "r+", "write": "w+"}
_MODES = ["r", "c", "r+", "w+"]


class _Default(str):
    """A mode that nobody gave."""


_DEFAULT = _Default("r+")
_IS_NUMPY_1 = np.__version__.startswith("1.")
_item = np.ndarray.__getitem__
# Ranges that are handed over in one call, and bytes that are copied in one.
_AT_ONCE = 1 << 18
_CHUNK = 4 << 20


class memmap(np.memmap, metaclass=Told):
    """An array over a file, or an object of a store, whose memory may be limited: `numpy.memmap` with a `cache`.

    Parameters
    ----------
    filename : str, path, file object or URL
        The file, opened in binary mode if it is one; or an object, such as ``"s3://bucket/key"``: see `open`.
    dtype : data-type, optional
        Of the elements; no objects. uint8 by default.
    mode : {"r+", "r", "w+", "c"}, optional
        "r": for reading. "r+": for reading and writing; a file that is too short is extended. "w+": made anew, or emptied. "c": stores stay in
        memory, and a cache has no say. By default "r+"; of an object "r", which is all that an object can have.
    offset : int, optional
        Where in the file the array begins, in bytes; any.
    shape : int or sequence of int, optional
        By default one dimension, to the end of the file.
    order : {"C", "F"}, optional
        Of the elements in the file.
    cache : None, int, str or Cache, optional
        The limit on the memory of the array: bytes, a size such as "1GiB", or a `Cache` that several arrays share. None: the
        kernel's mapping, which `steer` helps; of an object: a cache of the process's own, which takes what others
        leave of memory. Under `fastmap run --cache` it has no say of files: the library has all their mappings, within its budget.
    tier, tier_limit, deadline : optional
        Of an object: where its local copy lies, how much of the disk it may take, and how long its store may take: see `open`.

    Attributes
    ----------
    filename, offset, mode
        As of `numpy.memmap`.
    mapping : Mapping or None
        The mapped file; None of an array that is a copy.
    cache : Cache or None
        What it was made in.

    Raises
    ------
    ValueError
        No such mode, a shape that does not fit, a file that is too short, a cache that is too small, or a URL is none.
    io.UnsupportedOperation, OSError
        Of an object: see `open`. ESTALE also when a pickled array is of another version of the object than there is now.
    BlockingIOError
        With a cache and for writing, while another process has the file in a cache to write it.

    Notes
    -----
    Pickled, it is the file's name, or the URL as it was given, and the place in it: whoever unpickles maps the file, in a cache as large. If that is another process,
    and both may write, it is refused. A system call that is given memory of a cache fails with EFAULT where a page is absent: `tofile`, `numpy.save` and
    pickles copy; elsewhere use `Mapping.pin`, a copy, or `fastmap run`, under which all of them work. Where a file
    is cut while it is mapped, `gather` and `prefetch` raise OSError, and so does the main thread after any other access past its end, which would end
    the interpreter with `numpy.memmap` (SIGBUS). `faulthandler.enable` and `disable` belong where
    no other thread uses an array with a cache: while they run, a miss is a crash. Threads beside the main one find zeros past a cut end until that is told. While a file is in a cache to be written,
    other processes see what was flushed, and one that the kernel maps in this process makes all of them the kernel's, with a warning.

    Examples
    --------
    >>> a = fastmap.memmap("table.f32", np.float32, "r", shape=(1000, 128), cache="1MiB")
    >>> float(a[7].sum())
    128.0
    """

    def __new__(
        subtype,
        filename: Any,
        dtype: Any = np.uint8,
        mode: str = _DEFAULT,
        offset: int = 0,
        shape: Any = None,
        order: str = "C",
        *,
        cache: CacheLike = None,
        tier: Union[None, str, "os.PathLike[str]"] = None,
        tier_limit: SizeLike = None,
        deadline: Optional[float] = 30.0,
    ) -> "memmap":
        if mode is _DEFAULT and is_url(filename):
            mode = "r"
        mode = _NAMES.get(mode, str(mode) if mode is _DEFAULT else mode)
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {_MODES + list(_NAMES)!r} (got {mode!r})")
        if mode == "w+" and shape is None:
            raise ValueError("shape must be given if mode == 'w+'")
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            raise TypeError("a file cannot hold Python objects: dtype must not have any")
        offset = operator.index(offset)
        if offset < 0:
            raise OverflowError("memory mapped offset must be positive")
        shape = None if shape is None else _shape_of(shape)
        limit = as_cache(cache, is_url(filename))
        if is_url(filename):
            # An empty array needs a byte to be mapped.
            length = None if shape is None else _product(shape) * dtype.itemsize
            start, span = (offset, length) if length != 0 else (0, None)
            mapping = map_object(filename, mode, start, span, limit, tier, tier_limit, deadline)
            if shape is None:
                if len(mapping) % dtype.itemsize:
                    raise ValueError("Size of the available data must be a multiple of the data-type size.")
                shape = (len(mapping) // dtype.itemsize,)
            self = np.ndarray.__new__(subtype, shape, dtype, mapping, 0, order=order)
            _keep_open(mapping, self)
            self._mmap, self.offset, self.mode, self.filename = mapping, offset, mode, filename
            return self
        if hasattr(filename, "read"):
            opened = contextlib.nullcontext(filename)
        else:
            opened = _opened(filename, mode)
        with opened as file:
            file.seek(0, os.SEEK_END)
            there = file.tell()
            if shape is None:
                if (there - offset) % dtype.itemsize:
                    raise ValueError("Size of the available data must be a multiple of the data-type size.")
                shape = ((there - offset) // dtype.itemsize,)
            length = _product(shape) * dtype.itemsize
            end = offset + length
            if mode in ("r+", "w+"):
                # An empty array needs a byte to be mapped.
                end = max(end, 1)
                if there < end:
                    file.seek(end - 1)
                    file.write(b"\0")
                    file.flush()
                    there = end
            start, span = _mapped_part(offset, length, end, there)
            mapping = map_file(file.fileno(), start, span, mode.replace("w+", "r+"), limit)
            self = np.ndarray.__new__(subtype, shape, dtype, mapping, offset - start, order=order)
            _keep_open(mapping, self)
            self._mmap = mapping
            self.offset = offset
            self.mode = mode
            if isinstance(filename, os.PathLike):
                self.filename = Path(filename).resolve()
            elif isinstance(getattr(file, "name", None), str):
                self.filename = os.path.abspath(file.name)
            else:
                self.filename = None
        return self

    def __array_wrap__(self, array, context=None, return_scalar=False):
        array = np.ndarray.__array_wrap__(self, array, context)
        if self is array or type(self) is not memmap:
            return array
        # numpy 1 does not say that a scalar is wanted.
        is_scalar = return_scalar or (_IS_NUMPY_1 and array.shape == ())
        return array[()] if is_scalar else array.view(np.ndarray)

    def __getitem__(self, index):
        part = _item(self, index)
        return part.view(np.ndarray) if type(part) is memmap and part._mmap is None else part

    @property
    def mapping(self) -> Optional[Mapping]:
        """The mapped file; None of an array that is a copy."""
        return self._mmap

    @property
    def cache(self) -> Optional[Cache]:
        """What it was made in, or None."""
        return None if self._mmap is None else self._mmap.cache

    def flush(self) -> None:
        """Writes what was stored to the file, and returns when it is on stable storage.

        Raises
        ------
        OSError
            ENOSPC, EIO and what else write(2) and fdatasync(2) have; what could not be written is kept, and written by a later call.
        """
        if self._mmap is not None and self.mode not in ("r", "c"):
            self._mmap.flush()

    def prefetch(self, indices: Any = None, axis: int = 0, wait: bool = False) -> int:
        """Has the rows at some indices read, many at a time, for code that gathers them itself.

        Parameters
        ----------
        indices : array of int, optional
            Along `axis`; all by default.
        axis : int, optional
        wait : bool, optional
            Whether to return when each has been in memory; otherwise reads go on, and an access to one that is on its way waits.

        Returns
        -------
        int
            How many of the ranges that the rows are made of (one each, where a row is contiguous) were taken: without `wait` fewer than
            all where the queue is full (8 MiB, or an eighth of the cache).

        Raises
        ------
        IndexError
            As `gather`.
        OSError
            ENXIO past the file's end; EIO.

        Examples
        --------
        >>> a = fastmap.memmap("table.f32", np.float32, "r", shape=(1000, 128), cache="1MiB")
        >>> rows = [5, 1, 999]
        >>> a.prefetch(rows)
        3
        >>> a[rows].shape
        (3, 128)
        """
        if self._mmap is None:
            raise ValueError("the array is a copy, not mapped: there is nothing to read")
        axis = _axis(axis, self.ndim)
        indices = np.arange(self.shape[axis]) if indices is None else _indices(indices, self.shape[axis], axis)
        taken = 0
        for starts, length, _ in _blocks(self, self._mmap, indices, axis):
            now = self._mmap._prefetch_arrays(starts, np.full(len(starts), length, np.int64), wait)
            taken += now
            if now < len(starts):
                break
        return taken

    def copy(self, order: str = "C") -> np.ndarray:
        """A copy in memory, as `numpy.ndarray.copy`.

        But `dask.array.from_array`, which copies what it is given, gets the array itself: what is larger than memory has no copy there.
        """
        caller = sys._getframe(1)
        if caller.f_code.co_name == "from_array" and caller.f_globals.get("__name__", "").startswith("dask.array."):
            return self
        return super().copy(order)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """As `numpy.ndarray.tofile`, by way of copies: system calls cannot be given memory of a cache."""
        if sep or self._mmap is None:
            return super().tofile(fid, sep, format)
        if not hasattr(fid, "write"):
            with io.open(os.fspath(fid), "wb") as file:
                return self.tofile(file)
        plain = self.view(np.ndarray)
        flat = plain.reshape(-1) if plain.flags.c_contiguous else plain.flat
        step = max(_CHUNK // max(self.itemsize, 1), 1)
        for start in range(0, self.size, step):
            np.array(flat[start : start + step]).tofile(fid)

    def _is_named(self) -> bool:
        """Whether it is pickled as a place in a file."""
        return not (self._mmap is None or self.filename is None or self.mode == "c")

    def __reduce_ex__(self, protocol):
        if not self._is_named():
            return super().__reduce_ex__(protocol)
        if self.mode != "r" and self._mmap.engine != "kernel":
            # Others read the file.
            self._mmap.flush()
        low, high = _bounds(self)
        start = self._mmap.offset + low - self._mmap._address
        opened = self._mmap._opened and (*self._mmap._opened[1:], self._mmap._version)
        place = (self.filename, start, high - low, "r" if self.mode == "r" else "r+", opened, self.cache)
        array = (self.dtype, self.shape, self.strides, _address(self) - low)
        return _reopen, (type(self), place, array)


def _opened(filename: Any, mode: str) -> Any:
    """The file of a name. One that is made anew is cut by the engine's leave: it may have pages of it that were stored to."""
    filename = os.fspath(filename)
    if mode != "w+":
        return io.open(filename, ("r" if mode == "c" else mode) + "b")
    fd = os.open(filename, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        file = io.open(filename, "r+b", opener=lambda *_: fd)
    except BaseException:
        os.close(fd)
        raise
    try:
        _native.truncate(fd)
    except BaseException:
        file.close()
        raise
    return file


def _mapped_part(offset: int, length: int, end: int, there: int) -> Tuple[int, int]:
    """Which part of a file is mapped for an array, or what mmap.mmap says of it, which numpy would call: offset and length."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    span = end - start
    if span == 0 and start > 0:
        start, span = start - mmap.ALLOCATIONGRANULARITY, mmap.ALLOCATIONGRANULARITY
    if span < 0:
        raise OverflowError("memory mapped length must be positive")
    if span == 0:
        if there == 0:
            raise ValueError("cannot mmap an empty file")
        span = there - start
    if start + span > there:
        raise ValueError(f"mmap length is greater than file size: {length} bytes at offset {offset} of {there}")
    return (offset, length) if length > 0 else (start, span)


def _keep_open(mapping: Mapping, array: np.ndarray) -> None:
    """Has the mapping in use while there is the array, which all its views keep: numpy itself asks for a buffer and gives it back."""
    mapping._lend()
    weakref.finalize(array, mapping._give_back).atexit = False


def _reopen(subtype: type, place: tuple, array: tuple) -> memmap:
    filename, start, length, mode, opened, cache = place
    dtype, shape, strides, first = array
    if opened is None:
        if os.path.getsize(filename) < start + length:
            raise ValueError(f"mmap length is greater than file size: {filename!r} has been cut")
        part = memmap.__new__(subtype, filename, np.uint8, mode, start, (length,), cache=cache)
    else:
        *how, version = opened
        options = dict(zip(("tier", "tier_limit", "deadline"), how))
        part = memmap.__new__(subtype, filename, np.uint8, mode, start, (length,), cache=cache, **options)
        if part._mmap._version != version:
            raise OSError(errno.ESTALE, f"{part._mmap.url} has changed since the array was pickled: open it again and pickle that")
    self = np.ndarray.__new__(subtype, shape, dtype, part._mmap, first, strides)
    _keep_open(part._mmap, self)
    # Of an array without elements, too, which shares no memory.
    self._mmap, self.filename, self.offset, self.mode = part._mmap, part.filename, part.offset, part.mode
    return self


def _shape_of(shape: Any) -> Tuple[int, ...]:
    if not isinstance(shape, (tuple, list)):
        try:
            shape = (operator.index(shape),)
        except TypeError:
            pass
    shape = tuple(operator.index(length) for length in shape)
    if any(length < 0 for length in shape):
        raise ValueError("negative dimensions are not allowed")
    return shape


def _product(numbers: Tuple[int, ...]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _bounds(array: np.ndarray) -> Tuple[int, int]:
    """Where its elements begin and end in memory."""
    low = high = _address(array)
    if array.size == 0:
        return low, low + 1
    for length, stride in zip(array.shape, array.strides):
        low += min((length - 1) * stride, 0)
        high += max((length - 1) * stride, 0)
    return low, high + array.itemsize


def _mapping_of(array: Any) -> Optional[Mapping]:
    """The mapping that an array is a view of."""
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return array if isinstance(array, Mapping) else None


def _axis(axis: int, dimensions: int) -> int:
    axis = operator.index(axis)
    if not -dimensions <= axis < dimensions:
        raise np.exceptions.AxisError(axis, dimensions)
    return axis % dimensions


def _indices(indices: Any, length: int, axis: int) -> np.ndarray:
    """Indices as an array, all of them from 0 on."""
    indices = np.asarray(indices)
    if indices.size == 0 and indices.dtype.kind != "b":
        return indices.astype(np.int64)
    if indices.dtype.kind == "b":
        if indices.shape != (length,):
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis}; size of axis is {length} but size of "
                f"corresponding boolean axis is {indices.shape[0] if indices.ndim == 1 else indices.shape}"
            )
        return np.flatnonzero(indices)
    if indices.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    wrong = (indices >= length) | (indices < -length) if indices.dtype.kind == "i" else indices >= length
    if wrong.any():
        raise IndexError(f"index {indices[wrong].flat[0]} is out of bounds for axis {axis} with size {length}")
    indices = indices.astype(np.int64)
    return np.where(indices < 0, indices + length, indices)


def _blocks(array: np.ndarray, mapping: Mapping, indices: np.ndarray, axis: int):
    """The contiguous ranges of rows in the order of the result: offsets in the mapping, their length, and where the first lies in the
    result, in bytes; a part at a time."""
    length, tail = array.itemsize, array.ndim
    while tail > axis + 1 and (array.shape[tail - 1] == 1 or array.strides[tail - 1] == length):
        length *= array.shape[tail - 1]
        tail -= 1
    if 0 in array.shape or indices.size == 0 or length == 0:
        return
    starts = np.full((1,), _address(array) - mapping._address, np.int64)
    for dimension in range(tail):
        if dimension == axis:
            steps = indices.reshape(-1)
        else:
            steps = np.arange(array.shape[dimension], dtype=np.int64)
        starts = (starts[:, None] + (steps * array.strides[dimension])[None, :]).reshape(-1)
    for first in range(0, len(starts), _AT_ONCE):
        yield np.ascontiguousarray(starts[first : first + _AT_ONCE]), length, first * length


def gather(array: np.ndarray, indices: Any, out: Optional[np.ndarray] = None, axis: int = 0) -> np.ndarray:
    """Copies the rows of a mapped array at some indices, with as many reads at a time as the device takes.

    What `numpy.take(array, indices, axis, out)` returns, where a load of each row would wait for the device by itself. All rows together may be
    larger than the cache.

    Parameters
    ----------
    array : memmap, or a view of one
        Any other array is copied from by `numpy.take`.
    indices : array of int
        Sorted or not, with duplicates or without; negative ones count from the end. Or as many booleans as there are rows.
    out : array, optional
        Of the result's shape, to copy to. Straight, if it is contiguous and of the same dtype.
    axis : int, optional

    Returns
    -------
    ndarray
        Of shape ``array.shape[:axis] + indices.shape + array.shape[axis + 1:]``: `out`, if it is given.

    Raises
    ------
    IndexError
        An index is out of bounds, or no integer.
    ValueError
        `out` has another shape, or is not writable.
    OSError
        ENXIO (of the kernel's mappings EFAULT) past the end of a file that has been cut; EIO.

    Examples
    --------
    >>> a = fastmap.memmap("table.f32", np.float32, "r", shape=(1000, 128), cache="1MiB")
    >>> fastmap.gather(a, [7, 3, -1, 7]).shape
    (4, 128)
    """
    array = np.asarray(array)
    axis = _axis(axis, array.ndim)
    rows = _indices(indices, array.shape[axis], axis)
    shape = array.shape[:axis] + rows.shape + array.shape[axis + 1 :]
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise TypeError("return arrays must be of ArrayType")
        if out.shape != shape:
            raise ValueError("output array does not match result of ndarray.take")
        if not out.flags.writeable:
            raise ValueError("output array is read-only")
    mapping = _mapping_of(array)
    if mapping is None:
        return np.take(array, rows, axis, out)
    is_straight = (
        out is not None and out.dtype == array.dtype and out.flags.c_contiguous and not np.may_share_memory(out, array)
    )
    result = out if is_straight else np.empty(shape, array.dtype)
    at = _address(result)
    for starts, length, first in _blocks(array, mapping, rows, axis):
        lengths = np.full(len(starts), length, np.int64)
        mapping._gather(starts.ctypes.data, lengths.ctypes.data, len(starts), at + first, len(starts) * length)
    if out is not None and not is_straight:
        np.copyto(out, result, casting="safe")
        return out
    return result
