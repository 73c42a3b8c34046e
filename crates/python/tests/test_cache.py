"""`fastmap.Cache`: a limit that holds."""

import gc
import os

import numpy as np
import pytest
from helpers import PAGE, SMALLEST, cannot_run, noise, printed, refusal, write

import fastmap

DOCUMENTED = (
    "capacity resident_pages dirty_pages pinned_pages born_zero ahead_pages ahead_used ahead_wasted prefetched_pages evicted_pages "
    "writeback_pages misses"
).split()


def resident(array):
    """Bytes of an array's addresses that the kernel has in memory for this process."""
    start, size = array.__array_interface__["data"][0], array.nbytes
    total, inside = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first = line.split(" ", 1)[0]
            if "-" in first and ":" not in first:
                low, high = (int(number, 16) for number in first.split("-"))
                inside = low < start + size and high > start
            elif inside and first == "Rss:":
                total += int(line.split()[1]) << 10
    return total


def test_sizes_are_bytes_or_numbers_with_a_unit():
    sizes = {"65536": 65536, "64KiB": 65536, "1MiB": 1 << 20, "1GiB": 1 << 30, 1 << 20: 1 << 20, "0100KiB": 102400}
    for size, expected in sizes.items():
        assert fastmap.Cache(size).capacity == expected
    assert fastmap.Cache(np.uint32(65536)).capacity == 65536
    # Whole pages of it.
    assert fastmap.Cache(65537).capacity == 65536 and fastmap.Cache(capacity="1MiB").capacity == 1 << 20


@pytest.mark.parametrize("size", ["", "1", "0", "KiB", "1K", "+1MiB", "-1MiB", "0x100000", "٦٥٥٣٦", 0, 1, 65535, -1, -65536, 1 << 63, 1 << 64, 10**40, "9999999TiB", "1TiB", "1" * 5000])
def test_what_is_no_size_or_too_small_is_a_value_error(size):
    cache = fastmap.Cache("1MiB")
    for call in fastmap.Cache, cache.resize:
        error = refusal(lambda: call(size))
        assert type(error) is ValueError, error
    assert cache.capacity == 1 << 20


@pytest.mark.parametrize("size", [None, 1.0, 1e6, True, b"1MiB", [65536], object(), np.float32(65536)])
def test_what_is_no_number_is_a_type_error(size):
    cache = fastmap.Cache("1MiB")
    for call in fastmap.Cache, cache.resize:
        assert type(refusal(lambda: call(size))) is TypeError
    for wrong in lambda: fastmap.Cache(), lambda: fastmap.Cache(1 << 20, 5), lambda: fastmap.Cache(size="1MiB"):
        assert type(refusal(wrong)) is TypeError


def test_a_cache_larger_than_all_memory_is_an_error_or_a_cache_and_never_the_end():
    code = """
        import fastmap
        for size in 1 << 45, 1 << 50, 1 << 55, 1 << 62, (1 << 63) - 1, "900000TiB":
            try:
                cache = fastmap.Cache(size)
            except (OSError, ValueError, MemoryError):
                continue
            assert cache.capacity
        cache = fastmap.Cache("1MiB")
        for size in 1 << 50, (1 << 63) - 1:
            try:
                cache.resize(size)
            except (OSError, ValueError, MemoryError):
                assert cache.capacity == 1 << 20
        print("alive")
    """
    assert printed(code) == "alive"


def test_it_takes_no_memory_before_it_is_used():
    code = """
        import fastmap
        from helpers import of_process
        before = of_process("VmRSS")
        caches = [fastmap.Cache("1GiB") for _ in range(20)]
        print(of_process("VmRSS") - before < 100_000)
    """
    assert printed(code, env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)}) == "True"


def test_a_small_cache_takes_no_huge_page_for_what_it_keeps_beside_its_pages(tmp_path):
    with open("/sys/kernel/mm/transparent_hugepage/enabled") as enabled:
        if "[never]" in enabled.read():
            cannot_run("no program gets huge pages here")
    code = """
        import sys
        import fastmap
        a = fastmap.memmap(sys.argv[1], mode="r+", cache="1MiB")
        a.sum()
        for page in range(0, 1 << 15, 37):
            a[page % 2048 * 4096] += 1
        huge = 0
        for line in open("/proc/self/smaps"):
            field, *values = line.split()
            if field == "AnonHugePages:":
                size = int(values[0])
            elif field == "VmFlags:" and "hg" in values:
                huge += size
        print(huge)
    """
    assert printed(code, write(tmp_path / "a", noise(8 << 20).tobytes())) == "0"


def test_counters_are_those_that_are_documented_and_count(tmp_path):
    cache = fastmap.Cache(SMALLEST)
    stats = cache.stats()
    assert set(DOCUMENTED) <= set(stats) and all(type(value) is int for value in stats.values())
    assert stats["capacity"] == 65536 and not any(stats[name] for name in stats if name != "capacity")
    for name in DOCUMENTED:
        assert name in fastmap.Cache.stats.__doc__, name
    a = fastmap.memmap(write(tmp_path / "a", noise(1 << 20).tobytes()), mode="r+", cache=cache)
    a.mapping.advise("random")
    a[::PAGE] += 1
    now = cache.stats()
    assert now["misses"] >= 256 and now["evicted_pages"] >= 240 and now["writeback_pages"] >= 200
    assert 0 < now["resident_pages"] <= 16 and now["dirty_pages"] <= now["resident_pages"]
    a.flush()
    assert cache.stats()["dirty_pages"] == 0 and cache.stats()["writeback_pages"] >= 256
    assert repr(cache) == f"<fastmap.Cache of 65536 bytes, {cache.stats()['resident_pages'] * PAGE} in memory>"
    with pytest.raises(AttributeError):
        cache.capacity = 5


@pytest.mark.parametrize("size", [SMALLEST, "1MiB"])
def test_memory_stays_within_the_limit(tmp_path, size):
    cache = fastmap.Cache(size)
    size = 2 << 20
    a = fastmap.memmap(tmp_path / "a", mode="w+", shape=2 * size, cache=cache)
    b = fastmap.memmap(write(tmp_path / "b", noise(size).tobytes()), mode="r", cache=cache)
    steps = [lambda: a.fill(3), a.sum, b.sum, a[::-PAGE].sum, a[::4097].sum, lambda: fastmap.gather(b, np.arange(0, size, 999))]
    steps += [lambda: a[:size].prefetch(), lambda: b.prefetch(range(0, size, PAGE)), a.flush, lambda: np.add(a[:size], b, a[size:])]
    for step in steps:
        step()
        assert cache.stats()["resident_pages"] * PAGE <= cache.capacity
        assert resident(a) + resident(b) <= cache.capacity
    assert resident(a) + resident(b) > 0, "it is not measured"


def test_another_capacity_holds_at_once_and_nothing_is_lost(tmp_path):
    cache = fastmap.Cache("4MiB")
    shadow = noise(8 << 20)
    a = fastmap.memmap(tmp_path / "a", mode="w+", shape=8 << 20, cache=cache)
    for size in "4MiB", "64KiB", 1 << 20, "2MiB", 65536:
        a[:] = shadow
        assert cache.resize(size) is None
        assert cache.stats()["resident_pages"] * PAGE <= cache.capacity <= 2 << 20 or size == "4MiB"
        assert resident(a) <= cache.capacity
        assert (a == shadow).all()
        shadow += 1
        a += 1


def test_pins_are_kept_when_it_becomes_smaller(tmp_path):
    cache = fastmap.Cache("4MiB")
    with fastmap.open(write(tmp_path / "a", bytes(4 << 20)), cache=cache) as mapping:
        with mapping.pin(0, 2 << 20):
            with pytest.raises(OSError) as error:
                cache.resize("1MiB")
            assert error.value.errno == 16
            assert cache.stats()["pinned_pages"] == 512
        cache.resize("1MiB")


def test_a_cache_is_there_for_as_long_as_its_arrays(tmp_path):
    a = fastmap.memmap(tmp_path / "a", mode="w+", shape=1 << 20, cache=fastmap.Cache(SMALLEST))
    gc.collect()
    a[:] = 7
    assert a.sum() == 7 << 20 and a.cache.stats()["evicted_pages"] > 0
    cache = a.cache
    del a
    gc.collect()
    assert cache.stats()["resident_pages"] == 0


def test_many_caches_leave_no_threads_and_no_descriptors(tmp_path):
    write(tmp_path / "a", bytes(100_000))

    def counts():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def use():
        with fastmap.open(tmp_path / "a", "r+", cache=SMALLEST) as mapping:
            mapping.write(50_000, b"1")

    for _ in range(3):
        use()
    before = counts()
    for _ in range(25):
        use()
    assert all(now <= earlier + 5 for now, earlier in zip(counts(), before)), (before, counts())
