"""`fastmap.open` and `fastmap.Mapping`."""

import copy
import gc
import io
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers import CACHES, IS_LOCKED, PAGE, SMALLEST, noise, printed, refusal, write

import fastmap

SIZE = 300_000


@pytest.fixture
def shadow():
    return noise(SIZE, 6).tobytes()


@pytest.fixture
def path(tmp_path, shadow):
    return write(tmp_path / "a", shadow)


# The buffer protocol.


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_memoryview_of_it_is_its_bytes(path, shadow, mode, cache):
    with fastmap.open(path, mode, cache=cache) as mapping:
        with memoryview(mapping) as view:
            assert (view.format, view.itemsize, view.ndim, view.shape, view.strides) == ("B", 1, 1, (SIZE,), (1,))
            assert view.c_contiguous and view.readonly == (mode == "r") and view.obj is mapping
            assert view == shadow and bytes(view[5:-5:3]) == shadow[5:-5:3]
            if mode == "r":
                with pytest.raises(TypeError, match="read-only"):
                    view[0] = 1
            else:
                view[7] = view[7] ^ 255
        assert bytes(mapping)[:7] == shadow[:7] and bytearray(mapping)[8:] == shadow[8:]
    assert (path.read_bytes() == shadow) == (mode != "r+")


@pytest.mark.parametrize("cache", CACHES)
def test_arrays_are_made_of_it_and_keep_it(path, shadow, cache):
    mapping = fastmap.open(path, "r+", cache=cache)
    array = np.frombuffer(mapping, "<u2", 1000, 6)
    assert array.tobytes() == shadow[6:2006] and array.flags.writeable
    assert not np.frombuffer(fastmap.open(path), "u1").flags.writeable
    with pytest.raises(BufferError, match="1 .*view"):
        mapping.close()
    array[0] = 5
    del array
    gc.collect()
    mapping.close()
    assert path.read_bytes()[6:8] == b"\5\0"


def test_what_takes_bytes_takes_it(path, shadow):
    import hashlib
    import struct

    with fastmap.open(path, cache=SMALLEST) as mapping:
        assert hashlib.md5(mapping).digest() == hashlib.md5(shadow).digest()
        assert struct.unpack_from("<I", mapping, 9)[0] == int.from_bytes(shadow[9:13], "little")
        assert b"".join([mapping]) == shadow
        assert int.from_bytes(memoryview(mapping)[3:5], "big") == int.from_bytes(shadow[3:5], "big")
        assert len(mapping) == SIZE


def test_a_view_of_a_mapping_that_nobody_else_holds_is_good(path, shadow):
    view = memoryview(fastmap.open(path, cache=SMALLEST))[10:]
    gc.collect()
    assert view[-1] == shadow[-1]
    gone = weakref.ref(view.obj)
    view.release()
    del view
    gc.collect()
    assert gone() is None


# Opening and closing.


def test_paths_descriptors_and_files_are_mapped(path, shadow):
    descriptor = os.open(path, os.O_RDWR)
    for file in path, str(path), os.fsencode(path), Path(path), descriptor, open(path, "rb"), open(path, "r+b", 0), open(path):
        for cache in None, SMALLEST:
            with fastmap.open(file, cache=cache) as mapping:
                assert mapping.read(0, 10) == shadow[:10] and not mapping.writable
        if hasattr(file, "close"):
            file.close()
    os.lseek(descriptor, 77, os.SEEK_SET)
    mapping = fastmap.open(descriptor, "r+", cache=SMALLEST)
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 77
    # It needs no descriptor.
    os.close(descriptor)
    mapping.write(0, b"zz")
    mapping.close()
    assert path.read_bytes()[:3] == b"zz" + shadow[2:3]


def test_a_context_closes_it_and_closing_twice_is_nothing(path):
    for cache in None, SMALLEST:
        with fastmap.open(path, cache=cache) as mapping:
            assert not mapping.closed and isinstance(mapping, fastmap.Mapping)
        assert mapping.closed
        mapping.close()
        assert mapping.closed and "closed" in repr(mapping) and len(mapping) == SIZE
        with pytest.raises(ZeroDivisionError):
            with fastmap.open(path, cache=cache) as mapping:
                1 / 0
        assert mapping.closed


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_a_closed_mapping_says_so_as_mmap_does(path, cache):
    mapping = fastmap.open(path, "r+", cache=cache)
    mapping.close()
    calls = [
        lambda: memoryview(mapping),
        lambda: np.frombuffer(mapping),
        lambda: bytes(mapping),
        lambda: mapping.read(0, 1),
        lambda: mapping.write(0, b"1"),
        lambda: mapping.flush(),
        lambda: mapping.advise("random"),
        lambda: mapping.prefetch([(0, 1)]),
        lambda: mapping.prefetch([(0, 1)], wait=True),
        lambda: mapping.pin().__enter__(),
        lambda: mapping.engine,
        lambda: mapping.stats(),
    ]
    for call in calls:
        error = refusal(call)
        assert type(error) is ValueError and "closed" in str(error), error


def test_a_mapping_in_use_is_not_closed_and_goes_on(path, shadow):
    for cache in None, SMALLEST:
        mapping = fastmap.open(path, cache=cache)
        with mapping.pin(0, 100), memoryview(mapping), memoryview(mapping)[3:]:
            with pytest.raises(BufferError, match="delete them first"):
                mapping.close()
            with pytest.raises(BufferError):
                with mapping:
                    pass
        assert mapping.read(0, SIZE) == shadow
        mapping.close()


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_what_is_no_part_of_the_file_is_refused(path, tmp_path, cache):
    empty = write(tmp_path / "empty", b"")
    wrong = [
        dict(offset=SIZE),
        dict(offset=SIZE + 1),
        dict(offset=SIZE - 1, length=2),
        dict(length=SIZE + 1),
        dict(length=0),
        dict(length=-1),
        dict(offset=-1),
        dict(offset=-1, length=5),
        dict(offset=-PAGE, length=5),
        dict(offset=1 << 62, length=5),
        dict(offset=5, length=1 << 63),
        dict(offset=1 << 70),
        dict(length=1 << 70),
        dict(mode="w+"),
        dict(mode="w"),
        dict(mode="rb"),
        dict(mode=None),
        dict(mode=""),
    ]
    for arguments in wrong:
        error = refusal(lambda: fastmap.open(path, cache=cache, **arguments))
        assert isinstance(error, (ValueError, OverflowError)), (arguments, error)
    for mode in "r", "r+", "c":
        with pytest.raises(ValueError, match="empty file"):
            fastmap.open(empty, mode, cache=cache)
        with pytest.raises(ValueError):
            fastmap.open(empty, mode, length=5, cache=cache)
    for arguments in dict(offset=1.5), dict(length=2.0), dict(offset="1"), dict(length="all"), dict(cache=2.5), dict(offset=None):
        assert isinstance(refusal(lambda: fastmap.open(path, **arguments)), TypeError), arguments
    assert path.stat().st_size == SIZE and empty.stat().st_size == 0


def test_what_cannot_be_opened_is_an_error_of_the_system(path, tmp_path):
    for cache in None, SMALLEST:
        with pytest.raises(FileNotFoundError):
            fastmap.open(tmp_path / "missing", cache=cache)
        with pytest.raises(OSError):
            fastmap.open(tmp_path, cache=cache)
        with pytest.raises(OSError):
            fastmap.open(tmp_path, "r+", cache=cache)
        with pytest.raises(OSError, match="Bad file descriptor"):
            fastmap.open(987_654, cache=cache)
        with open(path, "rb") as file, pytest.raises(PermissionError):
            fastmap.open(file, "r+", cache=cache)
        with open("/dev/null", "rb") as file, pytest.raises((ValueError, OSError)):
            fastmap.open(file, cache=cache)
        with pytest.raises((OSError, ValueError)):
            fastmap.open(io.BytesIO(b"123"), cache=cache)
        with pytest.raises(ValueError, match="null"):
            fastmap.open("a\0b", cache=cache)
        with pytest.raises(TypeError):
            fastmap.open(None, cache=cache)
    assert not [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}") and os.path.samefile(f"/proc/self/fd/{name}", path)]


@pytest.mark.parametrize("cache", CACHES)
def test_any_part_of_a_file_is_mapped_and_no_more(path, shadow, cache):
    for offset, length in [(0, 1), (1, 1), (4095, 2), (4096, 4096), (5000, None), (SIZE - 1, 1), (SIZE - 1, None), (77, 100_000)]:
        with fastmap.open(path, "r+", offset=offset, length=length, cache=cache) as mapping:
            expected = shadow[offset:] if length is None else shadow[offset : offset + length]
            assert len(mapping) == len(expected) and bytes(mapping) == expected
            assert mapping.read(0, len(expected)) == expected
            mapping.write(0, expected[:1])
            mapping.flush()
    assert path.read_bytes() == shadow


# Copies that return errors.


@pytest.mark.parametrize("cache", CACHES)
def test_read_and_write_take_any_range_inside(path, shadow, cache):
    shadow = bytearray(shadow)
    with fastmap.open(path, "r+", offset=3, cache=cache) as mapping:
        shadow = shadow[3:]
        for offset, length in [(0, 0), (0, 1), (4090, 10), (5, 100_000), (len(shadow) - 1, 1), (len(shadow), 0), (0, len(shadow))]:
            data = mapping.read(offset, length)
            assert type(data) is bytes and data == shadow[offset : offset + length]
            turned = bytes(255 - byte for byte in data[:5000])
            assert mapping.write(offset, turned) is None
            shadow[offset : offset + len(turned)] = turned
            assert mapping.read(0, len(shadow)) == shadow
    assert path.read_bytes()[3:] == shadow


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_what_lies_outside_is_an_index_error_in_every_call(path, shadow, cache):
    with fastmap.open(path, "r+", cache=cache) as mapping:
        outside = [(SIZE, 1), (SIZE + 1, 0), (SIZE - 1, 2), (0, SIZE + 1), (1 << 62, 1), (1, 1 << 62), (-1, 1), (-1, 0), (0, -1), (5, -5)]
        outside += [(1 << 63, 1), (1 << 64, 1), (0, 1 << 64), (10**30, 1), ((1 << 64) - 1, 1), (1, (1 << 64) - 1)]
        for offset, length in outside:
            calls = {
                "read": lambda: mapping.read(offset, length),
                "flush": lambda: mapping.flush(offset, length),
                "advise": lambda: mapping.advise("random", offset, length),
                "prefetch": lambda: mapping.prefetch([(0, 1), (offset, length)]),
                "prefetch and wait": lambda: mapping.prefetch([(0, 1), (offset, length)], wait=True),
                "pin": lambda: mapping.pin(offset, length).__enter__(),
            }
            for name, call in calls.items():
                error = refusal(call)
                assert isinstance(error, IndexError), f"{name}({offset}, {length}): {error!r}"
        for offset, data in [(SIZE, b"1"), (SIZE - 1, b"12"), (-1, b"1"), (1 << 70, b"1")]:
            assert isinstance(refusal(lambda: mapping.write(offset, data)), IndexError), offset
        for call in mapping.flush, lambda offset: mapping.advise("random", offset), lambda offset: mapping.pin(offset).__enter__():
            assert isinstance(refusal(lambda: call(SIZE + 1)), IndexError)
        assert mapping.read(0, SIZE) == shadow


def test_arguments_of_other_types_are_type_errors(path):
    with fastmap.open(path, "r+", cache=SMALLEST) as mapping:
        wrong = [
            lambda: mapping.read(0.5, 1),
            lambda: mapping.read(0, 1.0),
            lambda: mapping.read("0", 1),
            lambda: mapping.write(0, "text"),
            lambda: mapping.write(0, None),
            lambda: mapping.write(0, 5),
            lambda: mapping.flush(0, 1.5),
            lambda: mapping.prefetch([(0.5, 1)]),
            lambda: mapping.prefetch([(0, 1.5)]),
            lambda: mapping.prefetch([("0", "1")]),
            lambda: mapping.prefetch([(None, 1)]),
            lambda: mapping.prefetch(5),
            lambda: mapping.prefetch([5]),
            lambda: mapping.pin(1.5, 2).__enter__(),
        ]
        for number, call in enumerate(wrong):
            error = refusal(call)
            assert isinstance(error, (TypeError, ValueError)), (number, error)


def test_bytes_like_objects_are_written(path):
    with fastmap.open(path, "r+", cache=SMALLEST) as mapping:
        for data in b"12", bytearray(b"34"), memoryview(b"56"), np.frombuffer(b"78", "u1"):
            mapping.write(0, data)
            assert mapping.read(0, 2) == bytes(data)


def test_a_mapping_for_reading_is_not_written(path, shadow):
    for cache in None, SMALLEST:
        with fastmap.open(path, cache=cache) as mapping:
            with pytest.raises(TypeError, match="reading"):
                mapping.write(0, b"1")
            mapping.flush()
    assert path.read_bytes() == shadow


@pytest.mark.parametrize("cache", [None, SMALLEST])
def test_flush_has_what_was_stored_in_the_file(path, cache):
    with fastmap.open(path, "r+", cache=cache) as mapping:
        view = memoryview(mapping)
        view[0], view[70_000], view[-1] = 1, 2, 3
        mapping.flush(70_000, 1)
        assert path.read_bytes()[70_000] == 2
        mapping.flush()
        now = path.read_bytes()
        assert (now[0], now[70_000], now[-1]) == (1, 2, 3)
        view.release()


def test_without_a_cache_read_and_write_of_the_file_see_stores_at_once(path):
    with fastmap.open(path, "r+") as mapping:
        mapping.write(5, b"abc")
        assert path.read_bytes()[5:8] == b"abc"


# Advice, prefetching, pins.


@pytest.mark.parametrize("cache", CACHES)
def test_all_advice_is_taken_and_changes_no_byte(path, shadow, cache):
    with fastmap.open(path, offset=5, cache=cache) as mapping:
        for advice in "random", "sequential", "backward", "willneed", "normal":
            for where in (), (0, 1), (100_000,), (4095, 5000), (SIZE - 5,), (SIZE - 5, 0):
                assert mapping.advise(advice, *where) is None
            assert bytes(mapping) == shadow[5:]
        for wrong in "", "RANDOM", "dontneed", None, 1:
            with pytest.raises(ValueError, match="'random', 'sequential'"):
                mapping.advise(wrong)


def test_a_walk_backward_is_read_ahead_of(tmp_path):
    path = write(tmp_path / "a", bytes(8 << 20))
    with fastmap.open(path, cache="1MiB") as mapping:
        mapping.advise("backward")
        for offset in range(len(mapping) - PAGE, -1, -PAGE):
            mapping.read(offset, 1)
        stats = mapping.stats()
        assert stats["ahead_used"] > 1500 and stats["misses"] < 500


def test_what_was_prefetched_is_no_miss(tmp_path):
    path = write(tmp_path / "a", noise(4 << 20).tobytes())
    content = path.read_bytes()
    with fastmap.open(path, cache="1MiB") as mapping:
        mapping.advise("random")
        ranges = [(page * PAGE * 7 % (4 << 20), 10) for page in range(100)]
        assert mapping.prefetch(ranges, wait=True) == 100
        stats = mapping.stats()
        assert stats["prefetched_pages"] == 100
        for offset, length in ranges:
            assert mapping.read(offset, length) == content[offset : offset + length]
        assert mapping.stats()["misses"] == stats["misses"]


@pytest.mark.parametrize("cache", CACHES)
def test_prefetch_takes_any_iterable_and_says_how_many_ranges_it_took(path, shadow, cache):
    with fastmap.open(path, cache=cache) as mapping:
        assert mapping.prefetch([]) == mapping.prefetch([], wait=True) == mapping.prefetch(iter(())) == 0
        assert mapping.prefetch(((5, 1), [SIZE - 1, 1])) == 2
        assert mapping.prefetch((offset, 1) for offset in range(3)) == 3
        assert mapping.prefetch(np.array([[1, 2], [100_000, 5000]]), wait=True) == 2
        assert mapping.prefetch([(0, 0), (SIZE, 0)], wait=True) == 2
        assert mapping.prefetch([(0, SIZE)] * 3, wait=True) == 3
        many = [(offset, 1) for offset in range(0, SIZE, 64)]
        assert 0 < mapping.prefetch(many) <= len(many)
        assert bytes(mapping) == shadow


def test_what_is_pinned_may_be_given_to_system_calls(path, shadow, tmp_path):
    with fastmap.open(path, "r+", cache="1MiB") as mapping, open(tmp_path / "b", "w+b", 0) as other:
        with mapping.pin(5, 100_000) as part:
            assert type(part) is memoryview and len(part) == 100_000 and not part.readonly
            assert mapping.stats()["pinned_pages"] == 25
            assert other.write(part) == 100_000
        assert mapping.stats()["pinned_pages"] == 0
        with pytest.raises(ValueError, match="released"):
            part[0]
        other.seek(0)
        assert other.read() == shadow[5:100_005]
        other.seek(0)
        with mapping.pin(200_000, 50_000) as part:
            assert other.readinto(part) == 50_000
    assert path.read_bytes() == shadow[:200_000] + shadow[5:50_005] + shadow[250_000:]


def test_pins_nest_and_end_with_an_exception(path):
    with fastmap.open(path, cache="1MiB") as mapping:
        with pytest.raises(ZeroDivisionError):
            with mapping.pin(), mapping.pin(0, 10), mapping.pin(5):
                assert mapping.stats()["pinned_pages"] == -(-SIZE // PAGE)
                1 / 0
        assert mapping.stats()["pinned_pages"] == 0
        with mapping.pin(10, 0) as nothing:
            assert len(nothing) == 0


def test_too_many_pins_are_an_error_and_none_stays(path, shadow):
    with fastmap.open(path, cache=SMALLEST) as mapping:
        with pytest.raises(OSError) as error:
            mapping.pin().__enter__()
        assert error.value.errno == 12
        assert mapping.stats()["pinned_pages"] == 0
        assert bytes(mapping) == shadow


def test_a_part_that_is_kept_after_its_pin_is_a_view_like_others(path, shadow):
    with fastmap.open(path, cache="1MiB") as mapping:
        with mapping.pin(5, 10) as part:
            kept = np.frombuffer(part, "u1")
        assert mapping.stats()["pinned_pages"] == 0
        with pytest.raises(BufferError):
            mapping.close()
        assert bytes(kept) == shadow[5:15]
        del kept
        gc.collect()


def test_pins_without_a_cache_are_the_kernels(path, shadow, tmp_path):
    with fastmap.open(path) as mapping, mapping.pin() as part:
        assert part == shadow and mapping.stats() == {"engine": "kernel"}


# What it says of itself.


def test_attributes_say_what_it_is(path):
    cache = fastmap.Cache("1MiB")
    for mode in "r", "r+", "c":
        mapping = fastmap.open(path, mode, cache=cache)
        assert mapping.writable == (mode != "r")
        assert (mapping.cache, mapping.engine) == ((None, "kernel") if mode == "c" else (cache, "fastmap"))
        assert repr(mapping) == f"<fastmap.Mapping of {SIZE} bytes, by {mapping.engine}>"
        assert set(mapping.stats()) == ({"engine"} if mode == "c" else {"engine", *cache.stats()})
        for name in "writable", "cache", "engine", "closed":
            with pytest.raises(AttributeError):
                setattr(mapping, name, 1)
        mapping.close()


def test_a_mapping_is_only_made_by_open(path):
    for call in fastmap.Mapping, lambda: fastmap.Mapping(5), lambda: fastmap.Mapping(path):
        assert isinstance(refusal(call), TypeError)
    with fastmap.open(path) as mapping:
        assert isinstance(refusal(lambda: copy.copy(mapping)), TypeError)


def test_files_beyond_four_gigabytes_are_mapped_where_they_are(tmp_path):
    path = tmp_path / "a"
    with open(path, "wb") as file:
        file.seek(5 << 30)
        file.write(b"at the end")
    for cache in None, SMALLEST:
        with fastmap.open(path, "r+", cache=cache) as mapping:
            assert len(mapping) == (5 << 30) + 10
            assert mapping.read(5 << 30, 10) == b"at the end"
            mapping.write((4 << 30) + 1, b"x")
        with fastmap.open(path, offset=(4 << 30) + 1, length=2, cache=cache) as mapping:
            assert bytes(mapping) == b"x\0"


# Python's other threads.

OTHERS = """
    import os, sys, threading
    import numpy as np
    import fastmap

    path = sys.argv[1]
    size = 16 << 20
    with open(path, "wb") as file:
        file.write(bytes(size))

    # A thread that waits for the interpreter gets it only where another gives it up.
    sys.setswitchinterval(1e6)

    def another_runs_during(call, times):
        start, ran = threading.Lock(), []
        start.acquire()
        other = threading.Thread(target=lambda: (start.acquire(), ran.append(True)))
        other.start()
        start.release()
        for _ in range(times):
            call()
            if ran:
                break
        result = bool(ran)
        other.join()
        return result

    def pure():
        for number in range(100_000):
            number + 1

    assert not another_runs_during(pure, 20), "the method finds nothing"

    # From here on nothing else gives it up: ufuncs of numpy do, of more than 500 elements.
    cache = fastmap.Cache("4MiB")
    a = fastmap.memmap(path, mode="r+", cache=cache, shape=(4096, 4096))
    mapping, view = a.mapping, memoryview(a.mapping)
    rows = np.random.default_rng(1).permutation(4096)
    out = np.empty((400, 4096), "u1")
    data = bytes(8 << 20)
    turn = iter(range(10**9))

    def store(pages, to=view):
        for page in range(pages):
            to[page * 4096] = 1

    def flush():
        store(64)
        a.flush()

    def some_rows():
        first = next(turn) * 400 % 3600
        return rows[first : first + 400]

    def resize():
        store(600)
        cache.resize("1MiB")
        cache.resize("4MiB")

    def pin():
        with mapping.pin((next(turn) % 2) << 23, 3 << 20):
            pass

    others = []
    for number in range(50):
        with open(f"{path}{number}", "wb") as file:
            file.write(bytes(1 << 20))
        others.append(fastmap.open(f"{path}{number}", "r+", cache="1MiB"))
        with memoryview(others[-1]) as other:
            store(200, other)

    calls = {
        "flush": (flush, 100),
        "gather": (lambda: fastmap.gather(a, some_rows(), out), 100),
        "prefetch": (lambda: a.prefetch(some_rows(), wait=True), 100),
        "read": (lambda: mapping.read(0, size), 100),
        "write": (lambda: mapping.write(0, data), 100),
        "advise": (lambda: mapping.advise("willneed", (next(turn) % 4) << 22, 3 << 20), 3000),
        "resize": (resize, 100),
        "pin": (pin, 100),
        "close": (lambda: others.pop().close(), 50),
    }
    for name, (call, times) in calls.items():
        assert another_runs_during(call, times), name
    kernels = fastmap.memmap(path + "0", mode="r+", shape=(256, 4096))
    with memoryview(kernels.mapping) as other:
        assert another_runs_during(lambda: (store(200, other), kernels.flush()), 100), "the kernel's flush"
    assert another_runs_during(lambda: fastmap.gather(kernels, rows[:400] % 256, out), 3000), "the kernel's gather"
    print("all")
"""


@pytest.mark.skipif(not IS_LOCKED, reason="an interpreter without a lock")
def test_other_threads_of_python_run_while_a_call_waits(tmp_path):
    assert printed(OTHERS, tmp_path / "a") == "all"
