"""Mapped files."""

import contextlib
import errno
import io
import mmap as _mmap
import operator
import os
import stat
from typing import Any, Iterable, Iterator, Optional, Tuple, Union

import numpy as np

from . import _native
from ._cache import Cache, as_cache, warn

__all__ = ["Mapping", "open"]

_ADVICE = {
    "normal": _mmap.MADV_NORMAL,
    "random": _mmap.MADV_RANDOM,
    "sequential": _mmap.MADV_SEQUENTIAL,
    "backward": _native.Mapping._BACKWARD,
    "willneed": _mmap.MADV_WILLNEED,
}

CacheLike = Union[None, int, str, Cache]


class Mapping(_native.Mapping):
    __doc__ = _native.Mapping.__doc__

    def __enter__(self) -> "Mapping":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<fastmap.Mapping, closed>"
        return f"<fastmap.Mapping of {len(self)} bytes, by {self.engine}>"

    def advise(self, advice: str, offset: int = 0, length: Optional[int] = None) -> None:
        """Says how the bytes will be used (madvise(2)).

        Parameters
        ----------
        advice : {"normal", "random", "sequential", "backward", "willneed"}
            "random": a miss reads one page. "sequential", "backward": a walk, read ahead of in that direction. "willneed": they are read
            now, as far as there is room. "normal": takes it back.
        offset, length : int, optional
            In bytes; all of the mapping by default. A cache takes it for units of 2 MiB.
        """
        try:
            number = _ADVICE[advice]
        except KeyError:
            raise ValueError(f"advice must be one of {list(_ADVICE)} (got {advice!r})") from None
        self._advise(number, offset, length)

    def write(self, offset: int, data: Any) -> None:
        """Stores bytes, of any object with a buffer; what cannot be stored is an exception.

        Raises
        ------
        TypeError
            The mapping is for reading.
        OSError
            ENXIO or EFAULT past the file's end; EIO.
        """
        self._write(offset, data if isinstance(data, bytes) else memoryview(data).tobytes())

    def prefetch(self, ranges: Iterable[Tuple[int, int]], wait: bool = False) -> int:
        """Has scattered ranges read, in one submission and many at a time.

        Parameters
        ----------
        ranges : iterable of (offset, length)
            In bytes.
        wait : bool, optional
            Whether to return when each has been in memory; else the reads go on, and an access to one that is on its way waits.

        Returns
        -------
        int
            How many ranges were taken, from the first on. Without `wait` fewer than all where the queue is full (8 MiB, or an eighth
            of the cache): ask for the rest later.

        Raises
        ------
        IndexError
            One is not inside the mapping.
        OSError
            ENXIO past the file's end; EIO.
        """
        numbers = [(operator.index(offset), operator.index(length)) for offset, length in ranges]
        if any(not 0 <= number < 1 << 63 for pair in numbers for number in pair):
            raise IndexError(f"a range is not inside the mapping of {len(self)} bytes")
        pairs = np.array(numbers, np.int64).reshape(-1, 2)
        return self._prefetch_arrays(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]), wait)

    def _prefetch_arrays(self, starts: np.ndarray, lengths: np.ndarray, wait: bool) -> int:
        return self._prefetch(starts.ctypes.data, lengths.ctypes.data, len(starts), wait)

    @contextlib.contextmanager
    def pin(self, offset: int = 0, length: Optional[int] = None) -> Iterator[memoryview]:
        """Keeps bytes in memory, where they are: a context manager with a memoryview of them.

        A system call may be given them then, as ``file.write`` does; without, one that is given memory of a cache fails with EFAULT
        where a page is absent.

        Raises
        ------
        OSError
            ENOMEM too much is pinned: a 16th of a cache stays free. ENXIO past the file's end; EIO.

        Examples
        --------
        >>> with fastmap.open("table.f32", cache="1MiB") as mapping, open("copy", "wb", buffering=0) as copy:
        ...     with mapping.pin(0, 4096) as part:
        ...         _ = copy.write(part)
        """
        length = max(len(self) - operator.index(offset), 0) if length is None else length
        self._pin(offset, length)
        try:
            view = memoryview(self)
            part = view[offset : offset + length]
            try:
                yield part
            finally:
                part.release()
                view.release()
        finally:
            self._unpin(offset, length)

    def stats(self) -> dict:
        """Who serves the mapping ("engine"), and the counters of its cache, if it has one (`Cache.stats`)."""
        counters = {}
        if self.cache is not None:
            # A child made by fork(2) has none.
            with contextlib.suppress(OSError):
                counters = self.cache.stats()
        return {"engine": self.engine, **counters}


def _is_looked_after() -> bool:
    """Whether this process runs under `fastmap run`, whose library looks after all mappings."""
    with io.open("/proc/self/maps") as maps:
        return any("libfastmap_preload" in line for line in maps)


def map_file(fd: int, offset: int, length: int, mode: str, cache: Optional[Cache]) -> Mapping:
    """Maps part of an open file in mode "r", "r+" or "c", in a cache if there is one that can."""
    if length <= 0:
        raise ValueError("cannot mmap an empty file")
    if offset < 0:
        raise ValueError("memory mapped offset must be positive")
    is_looked_after = _is_looked_after()
    # One engine in a process: two would have a keeper each, and each would wait for the other's end.
    if cache is not None and mode != "c" and not is_looked_after:
        try:
            return Mapping(fd, offset, length, mode, cache, False)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            warn(error)
    return Mapping(fd, offset, length, mode, None, is_looked_after)


def length_of(fd: int) -> int:
    """Bytes of a file or block device."""
    status = os.fstat(fd)
    if not stat.S_ISBLK(status.st_mode):
        return status.st_size
    with contextlib.closing(io.FileIO(fd, closefd=False)) as device:
        before = device.tell()
        size = device.seek(0, os.SEEK_END)
        device.seek(before)
        return size


def open(
    file: Any,
    mode: str = "r",
    *,
    offset: int = 0,
    length: Optional[int] = None,
    cache: CacheLike = None,
) -> Mapping:
    """Maps a file.

    Parameters
    ----------
    file : path, file object or descriptor
        What to map; a path is closed again, since the mapping needs no descriptor.
    mode : {"r", "r+", "c"}
        "r": for reading. "r+": stores reach the file. "c": stores stay in memory, and a cache has no say.
    offset : int, optional
        First byte of the file; any, not only multiples of pages.
    length : int, optional
        Bytes; to the end by default.
    cache : None, int, str or Cache
        The limit on the memory of the mapping: bytes, a size such as "1GiB", or a `Cache` that several share. None: the kernel's
        mapping, which FastMap advises while memory is short. Under `fastmap run` it has no say: its library has all mappings, within its budget.

    Returns
    -------
    Mapping

    Raises
    ------
    ValueError
        The file is empty or too short, a number is negative, or the cache is too small.
    BlockingIOError
        With a cache and mode "r+", while another process has the file so: two would write over each other's pages.

    Notes
    -----
    Bytes stored through a cache are in the file after `flush`, when the mapping is closed, or at the latest when the process has ended, killed or not.
    read(2) and write(2) of the file do not see them before. Where the file is cut while it is mapped,
    `Mapping.read`, `gather` and `Mapping.prefetch` raise OSError, and so does the main thread after any other access past its end, which finds
    zeros. The mapping is good for nothing but `close` then, and in a cache so are all others of that file: a new one is refused before.

    Examples
    --------
    >>> with fastmap.open("table.f32", cache="1MiB") as mapping:
    ...     mapping.read(0, 4)
    b'\\x00\\x00\\x00\\x00'
    """
    modes = {"r": os.O_RDONLY, "r+": os.O_RDWR, "c": os.O_RDONLY}
    if mode not in modes:
        raise ValueError(f"mode must be one of {list(modes)} (got {mode!r})")
    opened = None
    if isinstance(file, int):
        fd = file
    elif hasattr(file, "fileno"):
        fd = file.fileno()
    else:
        fd = opened = os.open(os.fspath(file), modes[mode] | os.O_CLOEXEC)
    try:
        there = length_of(fd)
        if length is None:
            length = there - offset
        elif length > 0 and 0 <= offset and offset + length > there:
            raise ValueError(f"mmap length is greater than file size: {length} bytes at offset {offset} of {there}")
        return map_file(fd, offset, length, mode, as_cache(cache))
    finally:
        if opened is not None:
            os.close(opened)
