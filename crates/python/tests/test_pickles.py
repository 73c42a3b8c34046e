"""Arrays and caches that go to other processes."""

import copy
import gc
import io
import os
import pickle
import tempfile

import numpy as np
import pytest
from helpers import CACHES, SMALLEST, noise, printed, refusal, write

import fastmap

DTYPE = np.dtype([("a", "<i4"), ("b", "u1", (3,)), ("c", ">f2")])

VIEWS = [
    lambda a: a,
    lambda a: a[3:7],
    lambda a: a[::-1],
    lambda a: a[::-2, 5:60:7],
    lambda a: a.T,
    lambda a: a.T[::-1, 3],
    lambda a: a[5, 6:7],
    lambda a: a["a"],
    lambda a: a["b"][:, 3, 1],
    lambda a: a[-1:, -1:],
    lambda a: a.reshape(-1)[100:],
    lambda a: a[:, None, ::3],
    lambda a: np.broadcast_to(a[2], (4, a.shape[1]), subok=True),
    lambda a: a[...],
]


def made(path, mode="r", cache=SMALLEST, offset=13):
    """A table, and the same in memory."""
    content = noise(offset + 100 * 90 * DTYPE.itemsize, 4)
    content[offset - 1 :: 7] &= 63
    write(path, content.tobytes())
    shadow = np.frombuffer(content[offset:].tobytes(), DTYPE).reshape(100, 90)
    return fastmap.memmap(path, DTYPE, mode, offset, (100, 90), cache=cache), shadow


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("view_of", VIEWS, ids=range(len(VIEWS)))
def test_a_view_is_pickled_by_its_place_in_the_file(tmp_path, view_of, mode, cache):
    a, shadow = made(tmp_path / "a", mode, cache)
    view, plain = view_of(a), view_of(shadow)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        pickled = pickle.dumps(view, protocol)
        assert len(pickled) < 1500
        b = pickle.loads(pickled)
        assert type(b) is fastmap.memmap
        assert (b.shape, b.dtype, b.mode) == (view.shape, view.dtype, mode)
        assert os.fspath(b.filename) == os.fspath(a.filename)
        assert b.tobytes() == plain.tobytes()
        # Which is pickled again.
        c = pickle.loads(pickle.dumps(b[1:], protocol))
        assert c.tobytes() == plain[1:].tobytes()
        assert (b.cache is None) == (cache is None)


def test_what_is_stored_through_an_unpickled_array_is_in_the_file(tmp_path):
    for cache in None, SMALLEST:
        a, shadow = made(tmp_path / "a", "r+", cache)
        b = pickle.loads(pickle.dumps(a["a"][::-1, ::2]))
        b[0, 0] = 77
        b.flush()
        assert a[99, 0]["a"] == 77
        del a, b
        assert np.fromfile(tmp_path / "a", DTYPE, offset=13).reshape(100, 90)[99, 0]["a"] == 77


READ = """
    import pickle, sys
    with open(sys.argv[1], "rb") as file:
        a, b = pickle.load(file)
    assert a.cache is b.cache
    print(a.mapping.engine, a.cache and a.cache.capacity, a.mode, int(a.sum()), int(b.sum()), len(__import__("os").listdir("/proc/self/task")) < 40)
"""


@pytest.mark.parametrize("cache", CACHES)
def test_another_process_maps_the_file_in_a_cache_as_large(tmp_path, cache):
    limit = cache and fastmap.Cache(cache)
    write(tmp_path / "a", bytes([1]) * 100_000)
    a = fastmap.memmap(tmp_path / "a", mode="r", cache=limit)
    b = fastmap.memmap(tmp_path / "a", mode="r", cache=limit, offset=10)
    with open(tmp_path / "pickled", "wb") as file:
        pickle.dump((a[:7], b), file)
    expected = f"kernel None r 7 {100_000 - 10} True" if cache is None else f"fastmap {limit.capacity} r 7 {100_000 - 10} True"
    assert printed(READ, tmp_path / "pickled") == expected


def test_what_was_stored_before_it_was_pickled_is_seen_by_other_processes(tmp_path):
    a = fastmap.memmap(tmp_path / "a", mode="w+", shape=100_000, cache="1MiB")
    a[:] = 3
    with open(tmp_path / "pickled", "wb") as file:
        pickle.dump(a, file)
    code = """
        import pickle, sys, fastmap
        print(fastmap.memmap(sys.argv[2], mode="r", cache="64KiB").sum())
        try:
            print(pickle.load(open(sys.argv[1], "rb")).sum())
        except BlockingIOError:
            print("refused")
    """
    # One process at a time has it in a cache to store to it.
    assert printed(code, tmp_path / "pickled", tmp_path / "a").splitlines() == ["300000", "refused"]
    del a
    gc.collect()
    assert printed(code, tmp_path / "pickled", tmp_path / "a").splitlines() == ["300000"] * 2


def test_arrays_that_share_a_cache_share_one_after_unpickling_and_in_this_process_the_same(tmp_path):
    cache = fastmap.Cache("128KiB")
    a, b = (fastmap.memmap(tmp_path / name, mode="w+", shape=10, cache=cache) for name in "ab")
    c, d = pickle.loads(pickle.dumps((a, b)))
    assert c.cache is d.cache is cache
    assert pickle.loads(pickle.dumps(cache)) is cache is copy.copy(cache)
    code = """
        import pickle, sys
        a, cache = pickle.loads(bytes.fromhex(sys.argv[1]))
        b = pickle.loads(bytes.fromhex(sys.argv[2]))
        print(a.cache is cache is b.cache, cache.capacity)
    """
    write(tmp_path / "r", bytes(100))
    c, d = (fastmap.memmap(tmp_path / "r", mode="r", cache=cache) for _ in range(2))
    assert printed(code, pickle.dumps((c, cache)).hex(), pickle.dumps(d).hex()) == "True 131072"


@pytest.mark.parametrize("cache", [None, SMALLEST])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_private_and_nameless_arrays_are_pickled_as_copies(tmp_path, protocol, cache):
    content = noise(2 << 20, 5)
    write(tmp_path / "a", content.tobytes())
    private = fastmap.memmap(tmp_path / "a", mode="c", cache=cache)
    private[:5] = 9
    with tempfile.TemporaryFile() as file:
        file.write(content.tobytes())
        nameless = fastmap.memmap(file, mode="r", cache=cache)
    for array in private, nameless, private[3::2], nameless[::-1]:
        for buffering in 0, -1:
            with open(tmp_path / "pickled", "wb", buffering) as file:
                pickle.dump(array, file, protocol)
            with open(tmp_path / "pickled", "rb") as file:
                b = pickle.load(file)
            assert b.tobytes() == array.tobytes()
            assert isinstance(b, np.ndarray) and getattr(b, "mapping", None) is None
            b[0] = 1


def test_copies_are_copies(tmp_path):
    a, shadow = made(tmp_path / "a", "r+")
    for b in copy.copy(a), copy.deepcopy(a), a.copy():
        assert b.tobytes() == shadow.tobytes() and getattr(b, "mapping", None) is None
        b["a"] = 0
    assert a.tobytes() == shadow.tobytes()


def test_an_array_of_no_bytes_is_unpickled_as_it_was(tmp_path):
    for mode in "w+", "r+":
        a = fastmap.memmap(tmp_path / "a", "f4", mode, shape=(0, 3), cache=SMALLEST)
        b = pickle.loads(pickle.dumps(a))
        assert (b.shape, b.dtype, b.size) == ((0, 3), np.dtype("f4"), 0)
        assert (os.fspath(b.filename), b.mode, b.cache) == (os.fspath(a.filename), "r+", a.cache)


def test_names_are_absolute_when_it_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a", b"123")
    a = fastmap.memmap("a", mode="r")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert bytes(pickle.loads(pickle.dumps(a))) == b"123"


def test_a_file_that_has_gone_or_been_cut_is_an_error_and_stays_as_it_is(tmp_path):
    for mode in "r", "r+":
        for cache in None, SMALLEST:
            a = fastmap.memmap(write(tmp_path / "a", bytes(10_000)), mode=mode, cache=cache)
            pickled = pickle.dumps(a)
            del a
            os.truncate(tmp_path / "a", 100)
            assert isinstance(refusal(lambda: pickle.loads(pickled)), ValueError)
            assert os.path.getsize(tmp_path / "a") == 100
            os.unlink(tmp_path / "a")
            assert isinstance(refusal(lambda: pickle.loads(pickled)), FileNotFoundError)
            assert not os.path.exists(tmp_path / "a")


def test_a_subclass_and_other_picklers_work_the_same(tmp_path):
    import cloudpickle

    a, shadow = made(tmp_path / "a")
    assert cloudpickle.loads(cloudpickle.dumps(a[5:])).tobytes() == shadow[5:].tobytes()
    buffers = []
    pickled = pickle.dumps(a, 5, buffer_callback=buffers.append)
    assert not buffers and pickle.loads(pickled).tobytes() == shadow.tobytes()
    a.dump(tmp_path / "dumped")
    assert np.load(tmp_path / "dumped", allow_pickle=True).tobytes() == shadow.tobytes()


def test_mappings_are_not_pickled(tmp_path):
    write(tmp_path / "a", bytes(10))
    with fastmap.open(tmp_path / "a") as mapping:
        for dump in pickle.dumps, copy.copy, copy.deepcopy:
            assert isinstance(refusal(lambda: dump(mapping)), TypeError)


def test_a_stream_of_arrays_is_unpickled_one_by_one(tmp_path):
    a, shadow = made(tmp_path / "a")
    stream = io.BytesIO()
    for row in a[:20]:
        pickle.dump(row, stream)
    stream.seek(0)
    del a, row
    gc.collect()
    for row in shadow[:20]:
        assert pickle.load(stream).tobytes() == row.tobytes()
