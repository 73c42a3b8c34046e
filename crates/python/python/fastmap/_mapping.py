"""Mapped files."""

import contextlib
import errno
import io
import mmap as _mmap
import operator
import os
import re
import stat
from typing import Any, Dict, Iterable, Iterator, Optional, Tuple, Union

import numpy as np

from . import _native
from ._cache import Cache, as_cache, size_of, warn

__all__ = ["Mapping", "open"]

_ADVICE = {
    "normal": _mmap.MADV_NORMAL,
    "random": _mmap.MADV_RANDOM,
    "sequential": _mmap.MADV_SEQUENTIAL,
    "backward": _native.Mapping._BACKWARD,
    "willneed": _mmap.MADV_WILLNEED,
}

CacheLike = Union[None, int, str, Cache]
SizeLike = Union[None, int, str]


class Mapping(_native.Mapping):
    __doc__ = _native.Mapping.__doc__

    # Of an object: how it was opened, for those that are to open it as well.
    _opened: Optional[Tuple[Any, ...]] = None

    def __enter__(self) -> "Mapping":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<fastmap.Mapping, closed>"
        what = f"{len(self)} bytes" if self.url is None else f"{len(self)} bytes of {self.url}"
        return f"<fastmap.Mapping of {what}, by {self.engine}>"

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
        """Who serves the mapping ("engine"), and the counters of its cache, if it has one (`Cache.stats`).

        Of an object also what was done for it since it was opened: bytes that came from the store (`fetched`), were read from the local copy
        (`hit`), and left that unread (`wasted`); `requests` to the store, and of these `retries` and `hedges`, second ones
        because the first was late; and units of 256 KiB that were `wrong` in the local copy, and fetched anew.
        """
        counters: Dict[str, int] = {} if self.url is None else self._object_stats()
        if self.cache is not None:
            # A child made by fork(2) has none.
            with contextlib.suppress(OSError):
                counters.update(self.cache.stats())
        return {"engine": self.engine, **counters}


def _is_looked_after() -> bool:
    """Whether this process runs under `fastmap run --cache`, whose library has all mappings."""
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


def is_url(name: Any) -> bool:
    """Whether it names an object. A path never does: "./s3://bucket" or a `pathlib.Path` names a file."""
    return isinstance(name, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name) is not None


def map_object(
    url: str, mode: str, offset: int, length: Optional[int], cache: CacheLike, tier: Any, tier_limit: SizeLike, deadline: Optional[float]
) -> Mapping:
    """Maps an object of a store, or part of it."""
    if mode != "r":
        raise io.UnsupportedOperation(f"an object of a store is read-only: pass mode 'r', not {mode!r}, and copy what is to be changed")
    offset = operator.index(offset)
    if offset < 0:
        raise ValueError("memory mapped offset must be positive")
    if length is not None and not 0 < operator.index(length) < 1 << 63:
        raise ValueError(f"{length} bytes cannot be mapped: there must be one at least")
    if deadline is not None and not deadline > 0:
        raise ValueError(f"a deadline of {deadline} s has passed: give a number above zero, or None to wait for ever")
    limit = None if tier_limit is None else size_of(tier_limit)
    if limit == 0:
        raise ValueError("a limit of 0 bytes is too small: the local copies need 16 MiB at least")
    folder = None if tier is None else os.fsencode(tier)
    source = (os.fsencode(url), folder, limit or 0, float("inf") if deadline is None else float(deadline))
    mapping = Mapping(source, offset, length or 0, "r", as_cache(cache, True), False)
    mapping._opened = (url, tier, tier_limit, deadline)
    return mapping


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
    tier: Union[None, str, "os.PathLike[str]"] = None,
    tier_limit: SizeLike = None,
    deadline: Optional[float] = 30.0,
) -> Mapping:
    """Maps a file, or an object of a store.

    Parameters
    ----------
    file : path, file object, descriptor or URL
        What to map; a path is closed again, since the mapping needs no descriptor. A str that begins as a URL is an object's:
        ``s3://bucket/key``, ``gs://bucket/key``, ``az://container/key``, ``http(s)://``, ``webdav(s)://``, ``webhdfs://``, ``hdfs://``,
        ``file:///path``. A file of such a name is a path: ``./s3:/…``.
    mode : {"r", "r+", "c"}
        "r": for reading, as objects are always. "r+": stores reach the file. "c": stores stay in memory, and a cache has no say.
    offset : int, optional
        First byte of the file; any, not only multiples of pages.
    length : int, optional
        Bytes; to the end by default.
    cache : None, int, str or Cache
        The limit on the memory of the mapping: bytes, a size such as "1GiB", or a `Cache` that several share. None: the kernel's
        mapping, which `steer` helps; of an object: a cache of the process's own, which takes what others leave of
        memory. Under `fastmap run --cache` it has no say of files: the library has all their mappings, within its budget.
    tier : None, str or path, optional
        Of an object: the folder of its local copy, on a local disk. None: ``$FASTMAP_TIER``, else ``$XDG_CACHE_HOME/fastmap``, else
        ``~/.cache/fastmap``.
    tier_limit : None, int or str, optional
        Of an object: the most bytes that all copies in that folder take. None: ``$FASTMAP_TIER_LIMIT``, else what the folder was given
        last, else a tenth of the disk's free space.
    deadline : None or float, optional
        Of an object: seconds that the store may take to give what is waited for; None: for ever.

    Returns
    -------
    Mapping

    Raises
    ------
    ValueError
        The file is empty or too short, a number is negative, the cache is too small, or a URL is none.
    io.UnsupportedOperation
        An object in another mode than "r".
    OSError
        Of an object, here and wherever a part of it is read: FileNotFoundError there is none; PermissionError access is denied, or
        credentials have expired; TimeoutError the store did not answer within the deadline; ESTALE the object has changed since it was
        opened; ENOSPC there is no room for the local copy; EIO.
    BlockingIOError
        With a cache and mode "r+", while another process has the file in a cache to write it.

    Notes
    -----
    Bytes stored through a cache are in the file after `flush`, when the mapping is closed, or at the latest when the process has ended, killed or not.
    Only what was flushed survives the out-of-memory killer, and the end of a container (a PID namespace).
    read(2) and write(2) of the file do not see them before. Where the file is cut while it is mapped,
    `Mapping.read`, `gather` and `Mapping.prefetch` raise OSError, and so does the main thread after any other access past its end, which finds
    zeros. The mapping is good for nothing but `close` then, and in a cache so are all others of that file: a new one is refused before.

    An object is mapped at the version that it has (ETag, version, or else time of modification). Its parts are fetched when they are touched, and
    ahead of walks, and kept in the local copy, which all processes of the user share. Credentials and endpoints are found where each service's
    own tools find them: environment, profiles, roles; one in the URL is refused. What cannot be fetched is an exception of `Mapping.read`,
    `gather`, `Mapping.pin` and `Mapping.prefetch` with `wait`; any other access finds zeros, and the main thread is told by an OSError, with the
    reason on standard error.

    Examples
    --------
    >>> with fastmap.open("table.f32", cache="1MiB") as mapping:
    ...     mapping.read(0, 4)
    b'\\x00\\x00\\x00\\x00'

    Of a store, with at most 1 GiB of it on local disk:

    >>> mapping = fastmap.open("s3://bucket/table.f32", tier_limit="1GiB")  # doctest: +SKIP
    """
    modes = {"r": os.O_RDONLY, "r+": os.O_RDWR, "c": os.O_RDONLY}
    if mode not in modes:
        raise ValueError(f"mode must be one of {list(modes)} (got {mode!r})")
    if is_url(file):
        return map_object(file, mode, offset, length, cache, tier, tier_limit, deadline)
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
