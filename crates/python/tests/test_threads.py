"""Many threads on the smallest cache, against a shadow."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import PAGE, SMALLEST, noise, write

import fastmap

ROUNDS = 200 if os.environ.get("FASTMAP_EFFORT") == "full" else 30
THREADS = 8


def at_once(work, count=THREADS):
    """Runs work(number) in threads that begin together; the first exception is raised."""
    together = threading.Barrier(count)

    def begin(number):
        together.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


@pytest.mark.parametrize("cache", [SMALLEST, None])
def test_threads_that_read_store_gather_and_flush_agree_with_a_shadow(tmp_path, cache):
    rows, columns = 1024, 1000
    shadow = noise(rows * columns, 30).reshape(rows, columns)
    path = write(tmp_path / "a", shadow.tobytes())
    a = fastmap.memmap(path, mode="r+", shape=shadow.shape, cache=cache)

    def work(number):
        # Its own: rows that lie between others', on pages of others'.
        chance = np.random.default_rng(number)
        own = np.arange(number, rows, THREADS)
        out = np.empty((50, columns), np.uint8)
        for turn in range(ROUNDS):
            chosen = chance.choice(own, 50)
            what = (turn + number) % 5
            if what == 0:
                values = chance.integers(0, 256, (len(chosen), columns), np.uint8)
                a[chosen] = values
                shadow[chosen] = values
            elif what == 1:
                assert (a[chosen] == shadow[chosen]).all()
            elif what == 2:
                fastmap.gather(a, chosen, out)
                assert (out == shadow[chosen]).all()
            elif what == 3:
                a[chosen[0], 3:900] += 1
                shadow[chosen[0], 3:900] += 1
                a.prefetch(chosen, wait=bool(turn % 2))
            else:
                a.flush() if number < 2 else a.mapping.advise(["random", "normal", "sequential"][turn % 3])
        return True

    assert at_once(work) == [True] * THREADS
    assert (a == shadow).all()
    a.flush()
    assert (np.fromfile(path, np.uint8).reshape(shadow.shape) == shadow).all()
    if cache:
        stats = a.cache.stats()
        assert stats["resident_pages"] * PAGE <= a.cache.capacity and stats["evicted_pages"] > 1000


def test_threads_gather_from_one_array_to_another_in_the_smallest_cache(tmp_path):
    # Both sides want its few pages.
    shadow = noise(2 << 20, 34).reshape(512, 4096)
    cache = fastmap.Cache(SMALLEST)
    a = fastmap.memmap(write(tmp_path / "a", shadow.tobytes()), mode="r", shape=shadow.shape, cache=cache)
    b = fastmap.memmap(tmp_path / "b", mode="w+", offset=100, shape=shadow.shape, cache=cache)

    def work(number):
        part = slice(number * 64, (number + 1) * 64)
        for turn in range(ROUNDS // 5):
            rows = np.random.default_rng((number, turn)).integers(0, 512, 64)
            fastmap.gather(a, rows, b[part])
            assert (b[part] == shadow[rows]).all()
        return rows

    rows = np.concatenate(at_once(work))
    b.flush()
    assert (np.fromfile(tmp_path / "b", np.uint8, offset=100).reshape(shadow.shape) == shadow[rows]).all()


def test_threads_that_map_and_unmap_agree_with_a_shadow(tmp_path):
    content = noise(1 << 20, 31)
    paths = [write(tmp_path / f"{number}", content.tobytes()) for number in range(3)]
    cache = fastmap.Cache(SMALLEST)

    def work(number):
        chance = np.random.default_rng(number)
        for turn in range(ROUNDS):
            path = paths[(number + turn) % 3]
            offset = int(chance.integers(0, 500_000))
            a = fastmap.memmap(path, mode="r", offset=offset, cache=cache)
            places = chance.integers(0, a.size, 20)
            assert (a[places] == content[offset + places]).all()
            mapping, view = a.mapping, a[5:]
            del a
            with pytest.raises(BufferError):
                mapping.close()
            assert (fastmap.gather(view, places - 5) == content[offset + 5 :][places - 5]).all()
            del view
            mapping.close()
        return True

    assert all(at_once(work))


def test_a_close_beside_calls_is_refused_or_lets_them_say_that_it_is_closed(tmp_path):
    content = noise(1 << 20, 32).tobytes()
    path = write(tmp_path / "a", content)
    for _ in range(20):
        mapping = fastmap.open(path, "r+", cache=SMALLEST)

        def work(number):
            done = 0
            for turn in range(1000):
                try:
                    if number == 0 and turn > 20:
                        mapping.close()
                        return done
                    offset = (turn * 7919 + number * 104_729) % (1 << 20) // 2
                    if number % 2:
                        assert mapping.read(offset, 9000) == content[offset : offset + 9000]
                    else:
                        with memoryview(mapping) as view:
                            assert view[offset] == content[offset]
                    done += 1
                except BufferError:
                    pass
                except ValueError as error:
                    assert "closed" in str(error)
                    return done
            return done

        assert all(done >= 0 for done in at_once(work, 4))
        mapping.close()


def test_a_cache_that_changes_its_capacity_beside_its_users_loses_nothing(tmp_path):
    cache = fastmap.Cache("1MiB")
    shadow = noise(4 << 20, 33).reshape(1024, 4096)
    a = fastmap.memmap(write(tmp_path / "a", shadow.tobytes()), mode="r+", shape=shadow.shape, cache=cache)

    def work(number):
        chance = np.random.default_rng(number)
        for turn in range(ROUNDS):
            if number == 0:
                cache.resize([65536, "1MiB", "256KiB", "4MiB"][turn % 4])
                continue
            rows = chance.integers(0, 128, 10) * 8 + number
            assert (fastmap.gather(a, rows) == shadow[rows]).all()
            a[rows[0]] ^= 1
            shadow[rows[0]] ^= 1
        return True

    at_once(work)
    assert (a == shadow).all()


def test_threads_may_share_pickled_caches_and_make_arrays_in_them(tmp_path):
    import pickle

    write(tmp_path / "a", bytes(100_000))
    cache = fastmap.Cache(SMALLEST)
    pickled = pickle.dumps(fastmap.memmap(tmp_path / "a", mode="r", cache=cache))

    def work(number):
        arrays = [pickle.loads(pickled) for _ in range(20)]
        assert all(array.cache is cache and not array.any() for array in arrays)
        return True

    assert all(at_once(work))
