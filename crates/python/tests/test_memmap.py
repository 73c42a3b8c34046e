"""`fastmap.memmap` beside `numpy.memmap`."""

import gc
import inspect
import io
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers import CACHES, PAGE, SMALLEST, cannot_run, noise, printed, refusal, write

import fastmap

# Earlier ones refuse some shapes that later ones take, and empty files.
IS_NEW = np.lib.NumpyVersion(np.__version__) >= "2.2.0"
PACKED = np.dtype([("a", "<i4"), ("b", "u1", (3,))])


def served(array):
    return array.mapping.engine


def file_of(path, dtype=np.uint8):
    return np.fromfile(path, dtype)


# What it takes, and what it has.


def test_it_takes_what_numpys_takes_and_a_cache():
    of_numpy = list(inspect.signature(np.memmap).parameters.values())
    of_ours = list(inspect.signature(fastmap.memmap).parameters.values())
    assert [(it.name, it.kind) for it in of_ours[: len(of_numpy)]] == [(it.name, it.kind) for it in of_numpy]
    assert [it.default for it in of_ours[: len(of_numpy)]] == [it.default for it in of_numpy]
    more = [("cache", None), ("tier", None), ("tier_limit", None), ("deadline", 30.0)]
    assert [(it.name, it.default) for it in of_ours[len(of_numpy) :]] == more
    assert issubclass(fastmap.memmap, np.memmap)


@pytest.mark.parametrize("cache", CACHES)
def test_what_is_stored_is_in_the_file_and_comes_back(tmp_path, cache):
    path = tmp_path / "a"
    shadow = noise(1 << 20).view(np.uint32).reshape(512, 512)
    a = fastmap.memmap(path, np.uint32, "w+", shape=(512, 512), cache=cache)
    assert served(a) == ("kernel" if cache is None else "fastmap")
    assert not a.any()
    a[:] = shadow
    a[:, 7] += 1
    shadow[:, 7] += 1
    a.flush()
    assert (file_of(path, np.uint32).reshape(512, 512) == shadow).all()
    del a
    b = fastmap.memmap(path, np.uint32, shape=(512, 512), cache=cache)
    assert b.mode == "r+" and (b == shadow).all()
    b[5] = 5
    shadow[5] = 5
    del b
    c = fastmap.memmap(path, np.uint32, "r", shape=(512, 512), cache=cache)
    assert (c == shadow).all() and not c.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        c[0, 0] = 1


@pytest.mark.parametrize("cache", CACHES)
def test_a_private_array_leaves_the_file_as_it_is_and_has_no_cache(tmp_path, cache):
    path = write(tmp_path / "a", noise(10_000).tobytes())
    a = fastmap.memmap(path, mode="c", cache=cache)
    before = a[:20].tobytes()
    a[:] = 1
    a.flush()
    assert (a == 1).all() and a.cache is None and served(a) == "kernel"
    assert file_of(path)[:20].tobytes() == before


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_names_of_files_are_numpys(tmp_path, monkeypatch, cache):
    monkeypatch.chdir(tmp_path)
    write("a", b"12345678")
    os.symlink("a", "link")
    for name in ["a", Path("a"), Path("link"), "link", os.fsencode("a")]:
        ours, theirs = fastmap.memmap(name, mode="r", cache=cache), np.memmap(name, mode="r")
        assert (ours.filename, type(ours.filename)) == (theirs.filename, type(theirs.filename))
    for mode in "rb", "r+b":
        for buffering in 0, -1:
            with open("a", mode, buffering) as file:
                ours, theirs = fastmap.memmap(file, mode="r", cache=cache), np.memmap(file, mode="r")
            assert ours.filename == theirs.filename and bytes(ours) == b"12345678"
    with tempfile.TemporaryFile() as file:
        file.write(b"12345678")
        ours, theirs = fastmap.memmap(file, cache=cache), np.memmap(file)
        assert ours.filename is None is theirs.filename and bytes(ours) == b"12345678"
    with tempfile.NamedTemporaryFile() as file:
        ours = fastmap.memmap(file, mode="w+", shape=3, cache=cache)
        assert ours.filename == file.name
    for wrong in 5, None, io.BytesIO(b"1234"):
        assert type(refusal(lambda: fastmap.memmap(wrong))) is type(refusal(lambda: np.memmap(wrong)))


def test_attributes_are_those_of_numpys_in_views_and_none_in_copies(tmp_path):
    for cache in None, SMALLEST:
        a = fastmap.memmap(tmp_path / str(cache), "f4", "w+", 12, (3, 4), "F", cache=cache)
        assert (a.offset, a.mode, a.dtype, a.shape, a.strides) == (12, "w+", np.dtype("f4"), (3, 4), (4, 12))
        assert isinstance(a.mapping, fastmap.Mapping) and len(a.mapping) == 48
        for view in a[1:], a.T, a.view(), a[::-1, ::2], a.reshape(12, order="F"), a.T.view("u1"):
            assert type(view) is fastmap.memmap
            assert (view.filename, view.offset, view.mode) == (a.filename, 12, "w+")
            assert view.mapping is a.mapping and view.cache is a.cache
        for copy in a.copy(), a + 1, a[[0, 1]], np.sort(a, 0), a.flatten():
            assert getattr(copy, "mapping", None) is None and getattr(copy, "cache", None) is None
            assert getattr(copy, "filename", None) is None
        copy = a.copy()
        copy.flush()
        with pytest.raises(ValueError, match="copy"):
            copy.prefetch()
    assert isinstance(a.cache, fastmap.Cache) and a.cache.capacity == 64 << 10


def test_the_cache_may_be_bytes_a_size_or_a_cache_that_several_share(tmp_path):
    cache = fastmap.Cache("128KiB")
    arrays = [fastmap.memmap(tmp_path / f"{i}", mode="w+", shape=100_000, cache=cache) for i in range(3)]
    for array in arrays:
        array[:] = 1
    assert all(array.cache is cache for array in arrays)
    assert 0 < cache.stats()["resident_pages"] * PAGE <= 128 << 10
    assert fastmap.memmap(tmp_path / "a", mode="w+", shape=1, cache=70_000).cache.capacity == 70_000 // PAGE * PAGE
    assert fastmap.memmap(tmp_path / "b", mode="w+", shape=1, cache=np.int64(1 << 20)).cache.capacity == 1 << 20


# Beside numpy's.


def outcome(kind, path, content, arguments):
    """What an array is, or the exception; and the file's length."""
    write(path, content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            a = kind(path, **arguments)
        except Exception as error:
            return error, path.stat().st_size
        return (a.shape, a.dtype, a.strides, a.offset, a.mode, a.flags.writeable, a.tobytes()), path.stat().st_size


SIZES = [0, 10, 4097, 8192]
TAKEN = [
    dict(),
    dict(shape=()),
    dict(shape=5),
    dict(shape=(3, 4)),
    dict(shape=[3, 4]),
    dict(shape=np.array([2, 3])),
    dict(shape=np.int8(5)),
    dict(shape=range(2, 4)),
    dict(shape=True),
    dict(shape=(3, 4), order="F"),
    dict(shape=(3, 4), order="A"),
    dict(shape=(3, 4), order=None),
    dict(dtype=">i2"),
    dict(dtype="f4", shape=2),
    dict(dtype=None, shape=1),
    dict(dtype=PACKED, shape=2),
    dict(dtype=("f4", (2,)), shape=1),
    dict(dtype="S3", shape=3),
    dict(dtype="U2", shape=1),
    dict(dtype="M8[s]", shape=1),
    dict(offset=1),
    dict(offset=1, shape=3),
    dict(offset=4095, shape=2),
    dict(offset=4096, shape=1),
    dict(offset=4097, dtype="f8", shape=7),
    dict(offset=8000, shape=500),
    dict(offset=True),
]
EMPTY = [
    dict(shape=0),
    dict(shape=(0, 4)),
    dict(shape=(4, 0)),
    dict(offset=1, shape=0),
    dict(offset=10),
    dict(offset=4096),
    dict(offset=8192),
    dict(offset=4096, shape=0),
    dict(dtype="S0", shape=3),
]


def modes(cases, names=("r", "r+", "c")):
    for case in cases:
        for mode in names:
            yield pytest.param(dict(case, mode=mode), id=f"{mode} {case}")


@pytest.fixture(scope="module")
def limits():
    """Without a cache, and with one."""
    return None, fastmap.Cache(SMALLEST)


@pytest.mark.parametrize("arguments", [*modes(TAKEN, ("r", "r+", "c", "w+", "readonly", "copyonwrite", "readwrite", "write"))])
def test_an_array_is_what_numpys_is(tmp_path, arguments, limits):
    for size in SIZES:
        content = (noise(size) & 31).tobytes()
        theirs, their_size = outcome(np.memmap, tmp_path / "theirs", content, arguments)
        if not isinstance(theirs, Exception) and 0 in theirs[0]:
            continue  # See the next.
        for cache in limits:
            ours, our_size = outcome(fastmap.memmap, tmp_path / "ours", content, dict(arguments, cache=cache))
            if isinstance(theirs, Exception):
                assert isinstance(ours, Exception) or not IS_NEW, (size, theirs, ours)
            else:
                assert (ours, our_size) == (theirs, their_size), size


@pytest.mark.parametrize("arguments", [*modes(EMPTY)])
def test_an_array_of_no_bytes_is_what_numpys_is_and_its_file_stays_as_it_is(tmp_path, arguments, limits):
    for size in SIZES:
        if arguments.get("offset", 0) > size:
            continue
        content = bytes(size)
        theirs, their_size = outcome(np.memmap, tmp_path / "theirs", content, arguments)
        for cache in limits:
            ours, our_size = outcome(fastmap.memmap, tmp_path / "ours", content, dict(arguments, cache=cache))
            if isinstance(theirs, Exception):
                assert isinstance(ours, Exception) or not IS_NEW, (size, theirs, ours)
            else:
                assert (ours, our_size) == (theirs, their_size), size


# In numpy's words: of memmap, or, for what is said of shapes, of empty.
REFUSED = [
    dict(mode="x"),
    dict(mode="rb"),
    dict(mode=None),
    dict(mode=3),
    dict(mode="w+"),
    dict(mode="r", offset=-1),
    dict(mode="r+", offset=-1),
    dict(mode="c", offset=-4096),
    dict(mode="r", offset=1.0, shape=3),
    dict(mode="r", shape=-1),
    dict(mode="r", shape=(2, -3)),
    dict(mode="r", shape="ab"),
    dict(mode="r", shape=1.5),
    dict(mode="r", shape=(1.5,)),
    dict(mode="r", shape={2, 1.5}),
    dict(mode="r", shape=801),
    dict(mode="c", shape=801),
    dict(mode="r", shape=(100, 9)),
    dict(mode="r", shape=3, offset=798),
    dict(mode="r", shape=3, offset=20_000),
    dict(mode="r", offset=20_000),
    dict(mode="r+", offset=20_000),
    dict(mode="c", offset=20_000),
    dict(mode="r", offset=801),
    dict(mode="r+", offset=801),
    dict(mode="r", shape=1 << 62),
    dict(mode="r", dtype="nonsense"),
    dict(mode="r", dtype="f8", offset=1),
    dict(mode="r+", dtype="f8", offset=1),
    dict(mode="r", shape=(2, 2), order="X"),
    dict(mode="r", shape=(2, 2), order=3),
]


@pytest.mark.parametrize("arguments", REFUSED, ids=str)
def test_what_numpy_refuses_is_refused_in_its_words(tmp_path, arguments):
    theirs, _ = outcome(np.memmap, tmp_path / "theirs", bytes(800), arguments)
    assert isinstance(theirs, Exception)
    allowed = [theirs]
    if arguments.get("shape") is not None:
        try:
            np.empty(arguments["shape"])
        except Exception as error:
            allowed.append(error)
    for cache in None, SMALLEST:
        ours, _ = outcome(fastmap.memmap, tmp_path / "ours", bytes(800), dict(arguments, cache=cache))
        assert isinstance(ours, Exception)
        # Versions of numpy say this in two ways.
        same = "multiple of the data-type size"
        assert any(
            type(ours) is type(error)
            and (not IS_NEW or str(error) in str(ours) or (same in str(error) and same in str(ours)))
            for error in allowed
        ), f"{ours!r}, where numpy has {allowed!r}"


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("shape", [1 << 62, 1 << 63, 1 << 70, (1 << 32, 1 << 32), (1 << 40, 1 << 40, 0, 1 << 62), 10**30])
def test_a_shape_beyond_all_memory_is_refused_and_the_file_stays_as_it_is(tmp_path, mode, shape):
    for cache in None, SMALLEST:
        ours, size = outcome(fastmap.memmap, tmp_path / "a", bytes(800), dict(mode=mode, shape=shape, cache=cache))
        if 0 in np.atleast_1d(np.array(shape, object)):
            continue  # No bytes: an array, or numpy's word.
        assert isinstance(ours, (ValueError, OverflowError, OSError, MemoryError)), ours
        assert size == 800


@pytest.mark.parametrize("mode", ["r", "r+", "w+", "c"])
@pytest.mark.parametrize("dtype", ["O", [("a", "i4"), ("b", "O")], object])
def test_objects_are_refused_before_the_file_is_touched(tmp_path, mode, dtype):
    ours, size = outcome(fastmap.memmap, tmp_path / "a", bytes(800), dict(mode=mode, dtype=dtype, shape=3))
    assert isinstance(ours, (TypeError, ValueError)) and "object" in str(ours).lower()
    assert size == 800


@pytest.mark.parametrize(
    "arguments",
    [
        dict(mode="r+", offset=20_000),
        dict(mode="r+", offset=8192),
        dict(mode="r+", offset=-1, shape=10_000),
        dict(mode="r+", shape=-5),
        dict(mode="r+", dtype="f8", offset=3),
        dict(mode="r+", shape=10_000, cache="1 XiB"),
        dict(mode="r+", shape=10_000, cache=4096),
        dict(mode="r+", shape=10_000, cache=-1),
        dict(mode="r+", shape=10_000, cache=1.5),
        dict(mode="w+", shape=10_000, cache=4096),
        dict(mode="w+", shape=10_000, cache="much"),
        dict(mode="w+", shape=10_000, cache=[1]),
        dict(mode="w+", shape=10_000, offset=-1),
        dict(mode="w+", shape=-1),
        dict(mode="w+", shape=1.5),
        dict(mode="w+", dtype="nonsense", shape=3),
    ],
    ids=str,
)
def test_a_call_that_is_refused_leaves_the_file_as_it_was(tmp_path, arguments):
    content = noise(804).tobytes()
    ours, _ = outcome(fastmap.memmap, tmp_path / "a", content, arguments)
    assert isinstance(ours, (ValueError, TypeError, OverflowError)), ours
    assert (tmp_path / "a").read_bytes() == content


def test_a_cache_that_is_too_small_or_no_size_is_refused(tmp_path):
    write(tmp_path / "a", bytes(10))
    for cache in 0, 1, 4096, 65_535, "63KiB", "4KiB", "0":
        with pytest.raises(ValueError, match="65536|64 KiB|64KiB|too small|at least"):
            fastmap.memmap(tmp_path / "a", cache=cache)
    for cache in "1 XiB", "MiB", "", "-1MiB", "0%", "٣MiB", -1, 1 << 63, 10**30:
        with pytest.raises(ValueError):
            fastmap.memmap(tmp_path / "a", cache=cache)
    for cache in 1.5, True, [1], object(), b"1MiB":
        with pytest.raises(TypeError):
            fastmap.memmap(tmp_path / "a", cache=cache)


def test_positions_of_arguments_are_numpys_and_the_cache_is_named(tmp_path):
    a = fastmap.memmap(tmp_path / "a", "i2", "w+", 3, (2, 2), "F")
    assert (a.dtype, a.mode, a.offset, a.shape, a.flags.f_contiguous) == (np.dtype("i2"), "w+", 3, (2, 2), True)
    with pytest.raises(TypeError):
        fastmap.memmap(tmp_path / "a", "i2", "r", 3, (2, 2), "F", "1MiB")


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_a_file_that_may_not_be_opened_so_is_refused_as_numpy_does(tmp_path, cache):
    write(tmp_path / "a", bytes(10))
    wrong = [(tmp_path / "missing", "r"), (tmp_path / "missing", "r+"), (tmp_path, "r"), (tmp_path / "a" / "b", "w+")]
    for path, mode in wrong:
        theirs = refusal(lambda: np.memmap(path, mode=mode, shape=3))
        ours = refusal(lambda: fastmap.memmap(path, mode=mode, shape=3, cache=cache))
        assert (type(ours), str(ours)) == (type(theirs), str(theirs))
    with open(tmp_path / "a", "rb") as file:
        theirs = refusal(lambda: np.memmap(file, mode="r+", shape=3))
        ours = refusal(lambda: fastmap.memmap(file, mode="r+", shape=3, cache=cache))
        assert type(ours) is type(theirs)
    with pytest.raises(ValueError, match="closed file"):
        fastmap.memmap(file, mode="r", cache=cache)


# Views.


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_results_of_arithmetic_are_plain_and_those_in_place_are_mapped(tmp_path, cache):
    a = fastmap.memmap(tmp_path / "a", "f8", "w+", shape=(40, 50), cache=cache)
    shadow = noise(2000).reshape(40, 50).astype("f8")
    a[:] = shadow
    for result in a + 1, 1 + a, -a, a * a, np.add(a, shadow), a @ a.T, a > 3, a.sum(0), np.sqrt(a), a.mean(1):
        assert type(result) is np.ndarray
    assert type(a.sum()) is np.float64 and type(a[0, 0]) is np.float64 and type(a.max()) is np.float64
    assert a.sum() == shadow.sum() and (a @ a.T == shadow @ shadow.T).all()
    same = a
    a += 1
    np.multiply(a, 2, out=a)
    a.sort(0)
    a[a > 100] = 0
    shadow = np.sort((shadow + 1) * 2, 0)
    shadow[shadow > 100] = 0
    assert a is same and type(a) is fastmap.memmap and (a == shadow).all()
    a.flush()
    assert (file_of(tmp_path / "a", "f8") == shadow.ravel()).all()


def test_a_subclass_stays_one_as_numpys_does(tmp_path):
    class Ours(fastmap.memmap):
        pass

    a = Ours(tmp_path / "a", "f4", "w+", shape=(3, 4), cache=SMALLEST)
    for result in a[1:], a[[0]], a + 1, a.sum(0), a.sum(), a.T:
        assert type(result) is Ours


@pytest.mark.parametrize("cache", [None, SMALLEST])
@pytest.mark.parametrize(
    "view_of",
    [
        lambda a: a[100:200],
        lambda a: a.view(np.ndarray)[100:200],
        lambda a: np.asarray(a)[100:200],
        lambda a: a[100:200].view("u2").view("u1"),
        lambda a: np.frombuffer(memoryview(a)[100:200], "u1"),
        lambda a: np.frombuffer(a.mapping, "u1")[100:200],
        lambda a: np.lib.stride_tricks.as_strided(a[100:200], (100,), (1,)),
        lambda a: np.broadcast_to(a[100:200], (3, 100))[2],
        lambda a: memoryview(a)[100:200],
        lambda a: memoryview(a.mapping)[100:200].cast("B"),
        lambda a: a.reshape(-1, 10)[10:20].T.T.ravel(),
        lambda a: next(np.nditer(a[100:200], ["external_loop"])),
    ],
    ids=range(12),
)
def test_a_view_keeps_the_map_and_a_map_with_views_is_not_closed(tmp_path, cache, view_of):
    content = noise(100_000)
    a = fastmap.memmap(write(tmp_path / "a", content.tobytes()), mode="r", cache=cache)
    view, mapping = view_of(a), a.mapping
    os.unlink(tmp_path / "a")
    del a
    gc.collect()
    with pytest.raises(BufferError, match="view"):
        mapping.close()
    assert not mapping.closed
    assert bytes(view) == content[100:200].tobytes()
    del view
    gc.collect()
    mapping.close()
    assert mapping.closed


def test_a_map_goes_with_its_last_array(tmp_path):
    def count():
        with open("/proc/self/maps") as maps:
            return sum("/leaves" in line for line in maps)

    write(tmp_path / "leaves", bytes(PAGE))
    a = fastmap.memmap(tmp_path / "leaves", mode="r")
    view = a[5:]
    assert count() == 1
    del a
    assert count() == 1
    del view
    gc.collect()
    assert count() == 0


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_many_arrays_leave_nothing_behind(tmp_path, cache):
    write(tmp_path / "a", bytes(100_000))

    def counts():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(maps.readlines())

    def work(times):
        for _ in range(times):
            a = fastmap.memmap(tmp_path / "a", mode="r+", cache=cache)
            a[::PAGE] += 1
            fastmap.gather(a, [5, 1])

    work(5)
    before = counts()
    work(100)
    for now, earlier, what in zip(counts(), before, ["descriptors", "threads", "mappings"]):
        assert now <= earlier + 20, what
    assert file_of(tmp_path / "a")[0] == 105


# Several arrays of one file.

PAIRS = """
    import sys, warnings
    import numpy as np
    import fastmap
    warnings.simplefilter("ignore")
    path, size = sys.argv[1], int(sys.argv[2])
    kinds = [("r+", None), ("r+", "1MiB"), ("r", None), ("r", "1MiB")]
    for first, second in [(first, second) for first in kinds for second in kinds]:
        with open(path, "wb") as file:
            file.write(bytes(size))
        a = fastmap.memmap(path, mode=first[0], cache=first[1])
        assert a[0] == 0
        b = fastmap.memmap(path, mode=second[0], cache=second[1])
        assert b[1] == 0
        for place, (one, other) in enumerate([(a, b), (b, a)]):
            if one.flags.writeable:
                one[place], one[5000] = place + 7, 9
                if (other[place], other[5000]) != (place + 7, 9):
                    print(first, "and then", second, "- not seen by the", ["second", "first"][place])
        for one in a, b, a:
            one.flush()
        expected = [place + 7 if one.flags.writeable else 0 for place, one in enumerate([a, b])]
        if np.fromfile(path, "u1")[:2].tolist() != expected:
            print(first, "and then", second, "- lost")
        del one, other, a, b
"""


@pytest.mark.parametrize("size", [100_000, 8 << 20])
def test_two_arrays_of_a_file_see_each_others_stores_and_lose_none(tmp_path, size):
    # In a process of its own: what was mapped before makes a difference.
    assert printed(PAIRS, tmp_path / "a", size) == ""


@pytest.mark.parametrize("second", [None, SMALLEST], ids=["kernel", "cache"])
@pytest.mark.parametrize("first", [None, SMALLEST], ids=["kernel", "cache"])
@pytest.mark.parametrize("size", [100_000, 8 << 20])
def test_a_file_made_anew_is_empty_though_an_older_array_of_it_lives(tmp_path, size, first, second):
    # As in a cell of a notebook that is run again.
    a = fastmap.memmap(tmp_path / "a", mode="w+", shape=size, cache=first)
    a[:] = 1
    a = fastmap.memmap(tmp_path / "a", mode="w+", shape=size, cache=second)
    assert not a.any()
    a[7] = 7
    a.flush()
    assert file_of(tmp_path / "a")[:9].tolist() == [0, 0, 0, 0, 0, 0, 0, 7, 0]
    del a
    assert file_of(tmp_path / "a").sum() == 7


def test_a_warning_names_the_line_that_asked(tmp_path):
    path = write(tmp_path / "a", bytes(8 << 20))
    a = fastmap.memmap(path)
    for make in (lambda: fastmap.memmap(path, cache="1MiB"), lambda: fastmap.open(path, "r+", cache="1MiB")):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            make()
        # Where the kernel has to have the new one, too.
        assert [warning.filename for warning in said if warning.category is RuntimeWarning] in ([], [__file__])
    assert a[0] == 0


# Files.


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_any_offset_and_length_reaches_its_own_bytes_and_no_others(tmp_path, cache):
    size = 5 * PAGE + 123
    shadow = noise(size)
    path = write(tmp_path / "a", shadow.tobytes())
    for offset in 0, 1, 4095, 4096, 4097, 5 * PAGE, size - 1:
        for length in 1, 4095, 4096, 4097, 2 * PAGE + 1, size - offset:
            if offset + length > size:
                continue
            a = fastmap.memmap(path, mode="r+", offset=offset, shape=length, cache=cache)
            assert (a == shadow[offset : offset + length]).all()
            a[0] ^= 255
            a[-1] ^= 1
            shadow[offset] ^= 255
            shadow[offset + length - 1] ^= 1
            del a
            assert (file_of(path) == shadow).all(), (offset, length)


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_a_file_that_is_too_short_is_extended_with_zeros_for_writing(tmp_path, cache):
    path = write(tmp_path / "a", b"\1" * 10)
    a = fastmap.memmap(path, "u1", "r+", offset=5, shape=9000, cache=cache)
    assert path.stat().st_size == 9005 and a[:5].all() and not a[5:].any()
    a[8999] = 3
    del a
    assert path.stat().st_size == 9005 and path.read_bytes()[-1] == 3


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_a_file_that_grows_is_seen_by_new_arrays(tmp_path, cache):
    path = write(tmp_path / "a", b"\1" * 5000)
    kept = [fastmap.memmap(path, cache=cache)]
    for step in range(2, 6):
        with open(path, "ab") as file:
            file.write(bytes([step]) * 5000)
        kept.append(fastmap.memmap(path, cache=cache))
        assert [array.size for array in kept] == [5000 * (i + 1) for i in range(step)]
        kept[-1][5000 * (step - 1)] += 100
        assert kept[-1][-1] == step and kept[0][0] == 1
    kept[-1].flush()
    kept.clear()
    assert file_of(path)[::5000].tolist() == [1, 102, 103, 104, 105]


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_holes_of_a_sparse_file_are_zeros_and_stay_holes(tmp_path, cache):
    path = tmp_path / "a"
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    a = fastmap.memmap(path, "u1", "r+", cache=cache)
    assert not a[:: 16 << 20].any() and not a[-300_000:].any()
    a[1 << 29] = 5
    a.flush()
    assert a[(1 << 29) - 1 : (1 << 29) + 2].tolist() == [0, 5, 0]
    del a
    assert path.stat().st_blocks * 512 < 1 << 20
    with open(path, "rb") as file:
        file.seek(1 << 29)
        assert file.read(2) == b"\5\0"


@pytest.mark.filterwarnings("ignore:.*mapped by the kernel:RuntimeWarning")
@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_a_file_in_memory_works_the_same(cache):
    if not os.access("/dev/shm", os.W_OK):
        cannot_run("no /dev/shm")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        a = fastmap.memmap(file.name, "u4", "w+", shape=(1000, 100), cache=cache)
        shadow = np.arange(100_000, dtype="u4").reshape(1000, 100)
        a[:] = shadow
        a.flush()
        assert (fastmap.gather(a, [5, 999, 5]) == shadow[[5, 999, 5]]).all()
        assert a.prefetch([1, 2], wait=True) == 2
        assert (file_of(file.name, "u4") == shadow.ravel()).all()


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_a_file_without_a_name_any_more_works_the_same(tmp_path, cache):
    a = fastmap.memmap(tmp_path / "a", mode="w+", shape=300_000, cache=cache)
    os.unlink(tmp_path / "a")
    shadow = noise(300_000)
    a[:] = shadow
    a.flush()
    assert (a == shadow).all()


AS_NOBODY = """
    import os, sys, fastmap, numpy as np
    folder, cache = sys.argv[1], sys.argv[2] or None
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    a = fastmap.memmap(folder + "/free/a", "u1", "w+", shape=200_000, cache=cache)
    a[:] = 3; a.flush()
    r = fastmap.memmap(folder + "/locked/r", mode="r", cache=cache)
    assert r.sum() == 200_000 and fastmap.gather(r, [3])[0] == 1
    def refused(kind, name, mode, **how):
        try:
            kind(folder + name, mode=mode, shape=3, **how)
        except Exception as error:
            return type(error).__name__, str(error)
        raise AssertionError(name)
    for name, mode in [("/locked/r", "r+"), ("/locked/r", "w+"), ("/locked/new", "w+"), ("/locked/hidden", "r")]:
        ours, theirs = refused(fastmap.memmap, name, mode, cache=cache), refused(np.memmap, name, mode)
        assert ours == theirs, (ours, theirs)
    print(a.mapping.engine, r.mapping.engine)
"""


@pytest.mark.parametrize("cache", ["", "64KiB"])
def test_without_root_files_that_may_only_be_read_are_read_and_others_refused(tmp_path, cache):
    if os.geteuid() != 0:
        cannot_run("only root can become nobody")
    folder = Path(tempfile.mkdtemp())
    try:
        for name in "free", "locked":
            (folder / name).mkdir()
        write(folder / "locked" / "r", b"\1" * 200_000)
        write(folder / "locked" / "hidden", b"\1" * 10)
        for path, mode in [("", 0o755), ("free", 0o777), ("locked/r", 0o444), ("locked/hidden", 0), ("locked", 0o555)]:
            (folder / path).chmod(mode)
        # Of another user's file there is no lease.
        assert printed(AS_NOBODY, folder, cache) == ("fastmap kernel" if cache else "kernel kernel")
    finally:
        shutil.rmtree(folder)


# Copies out.


@pytest.mark.parametrize("cache", [None, SMALLEST])
@pytest.mark.parametrize("view_of", [lambda a: a, lambda a: a.T, lambda a: a[::-2, 3:], lambda a: a[5, 6], lambda a: a[3:3]])
def test_arrays_are_saved_from_a_cache_that_does_not_hold_them(tmp_path, view_of, cache):
    shadow = noise(1 << 18, 1).view("f4").reshape(256, 256)
    shadow[np.isnan(shadow)] = 0
    a = fastmap.memmap(tmp_path / "a", "f4", "w+", shape=shadow.shape, cache=cache)
    a[:] = shadow
    view, plain = view_of(a), view_of(shadow)
    np.save(tmp_path / "b.npy", view)
    assert np.array_equal(np.load(tmp_path / "b.npy"), plain)
    with open(tmp_path / "c.npy", "wb") as file:
        np.save(file, view)
        np.save(file, plain)
    with open(tmp_path / "c.npy", "rb") as file:
        assert np.array_equal(np.load(file), plain) and np.array_equal(np.load(file), plain)
    np.savez(tmp_path / "d.npz", view=view)
    assert np.array_equal(np.load(tmp_path / "d.npz")["view"], plain)
    np.save(buffer := io.BytesIO(), view)
    buffer.seek(0)
    assert np.array_equal(np.load(buffer), plain)
    assert view.tobytes() == plain.tobytes() and view.tobytes("F") == plain.tobytes("F")


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_tofile_writes_where_the_file_is_and_in_text_as_numpys_does(tmp_path, cache):
    shadow = noise(300_000, 2).reshape(300, 1000)
    a = fastmap.memmap(write(tmp_path / "a", shadow.tobytes()), mode="r", shape=shadow.shape, cache=cache)
    for buffering in 0, -1:
        with open(tmp_path / "b", "wb", buffering) as file:
            file.write(b"head")
            a.tofile(file)
            a.T.tofile(file)
            assert file.tell() == 600_004
            file.write(b"tail")
        assert (tmp_path / "b").read_bytes() == b"head" + shadow.tobytes() + shadow.T.tobytes() + b"tail"
    for name in tmp_path / "c", str(tmp_path / "c"):
        a[1:].tofile(name)
        assert (tmp_path / "c").read_bytes() == shadow[1:].tobytes()
    a[0].tofile(tmp_path / "c", ",", "%d")
    assert (tmp_path / "c").read_text() == ",".join(map(str, shadow[0]))
    theirs = refusal(lambda: shadow.tofile(io.BytesIO()))
    assert type(refusal(lambda: a.tofile(io.BytesIO()))) is type(theirs)
    with pytest.raises(FileNotFoundError):
        a.tofile(tmp_path / "missing" / "c")


def test_an_array_can_be_hashed_compressed_and_printed_from_the_smallest_cache(tmp_path):
    import hashlib
    import zlib

    shadow = noise(1 << 20, 3)
    a = fastmap.memmap(write(tmp_path / "a", shadow.tobytes()), mode="r", cache=SMALLEST)
    assert hashlib.sha256(a).digest() == hashlib.sha256(shadow).digest()
    assert zlib.decompress(zlib.compress(a, 1)) == shadow.tobytes()
    assert str(a) == str(shadow) and repr(a).startswith("memmap(")


def test_flush_is_for_arrays_that_may_write(tmp_path):
    write(tmp_path / "a", bytes(100))
    for mode in "r", "c":
        fastmap.memmap(tmp_path / "a", mode=mode, cache=SMALLEST).flush()
    a = fastmap.memmap(tmp_path / "a", mode="r+", cache=SMALLEST)
    a[3] = 4
    assert a[2:5].flush() is None
    assert (tmp_path / "a").read_bytes()[3] == 4
