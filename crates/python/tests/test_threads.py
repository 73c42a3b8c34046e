"""Many threads on the smallest cache, against a shadow."""

import gc
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import IS_LOCKED, PAGE, SMALLEST, noise, printed, write

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
    write(tmp_path / "a", bytes(100_000))
    cache = fastmap.Cache(SMALLEST)
    pickled = pickle.dumps(fastmap.memmap(tmp_path / "a", mode="r", cache=cache))

    def work(number):
        arrays = [pickle.loads(pickled) for _ in range(20)]
        assert all(array.cache is cache and not array.any() for array in arrays)
        return True

    assert all(at_once(work))


def test_threads_that_share_one_mapping_and_end_it_see_its_bytes_or_that_it_is_closed(tmp_path):
    content = noise(1 << 20, 35)
    cache = fastmap.Cache("256KiB")
    write(tmp_path / "a", content.tobytes())
    for turn in range(ROUNDS // 10):
        for limit in cache, None:
            mapping = fastmap.open(tmp_path / "a", "r+", cache=limit)

            def work(number):
                chance = np.random.default_rng((turn, number))
                done = 0
                while number == 0 or done < 100:
                    offset, length = int(chance.integers(0, 900_000)), int(chance.integers(1, 50_000))
                    there = content[offset : offset + length].tobytes()
                    try:
                        if number == 0:
                            if done > 5:
                                mapping.close()
                                return
                            mapping.flush(offset, length)
                        elif number == 1:
                            with mapping.pin(offset, length) as part:
                                assert part == there
                        elif number == 2:
                            mapping.prefetch([(offset, length), (0, 1)], wait=bool(done % 2))
                        elif number == 3:
                            mapping.write(offset, there)
                        elif number == 4:
                            view = np.frombuffer(mapping, np.uint8)[offset : offset + length]
                            assert view.tobytes() == there and fastmap.gather(view, [0])[0] == there[0]
                            del view
                        elif number == 5:
                            mapping.advise(["normal", "random", "willneed"][done % 3], offset, length)
                            assert mapping.stats()["engine"] in repr(mapping)
                        else:
                            assert mapping.read(offset, length) == there
                        done += 1
                    except BufferError:
                        time.sleep(0.001)  # Others use it.
                    except ValueError as error:
                        assert "closed" in str(error)
                        return

            at_once(work)
            assert mapping.closed
    assert (np.fromfile(tmp_path / "a", np.uint8) == content).all()


def test_an_array_that_threads_let_go_of_at_once_is_unmapped(tmp_path):
    content = noise(1 << 20, 36)
    write(tmp_path / "a", content.tobytes())
    for turn in range(ROUNDS):
        a = fastmap.memmap(tmp_path / "a", mode="r", cache=[SMALLEST, None][turn % 2])
        mapping, shared = a.mapping, [a[number::THREADS] for number in range(THREADS)]
        del a

        def work(number):
            view = shared[number]
            shared[number] = None
            assert (view[turn::1000] == content[number::THREADS][turn::1000]).all()

        at_once(work)
        gc.collect()
        mapping.close()


CACHES = """
    import os, pickle, sys, threading
    import fastmap
    from fastmap import _cache
    path, pickled = sys.argv[1], bytes.fromhex(sys.argv[2])
    together, found, made = threading.Barrier(8), [], []

    def begin(number):
        together.wait()
        for _ in range(20):
            cache = pickle.loads(pickled)
            found.append((cache, fastmap.memmap(path, mode="r", cache=cache).cache))
            made.append(fastmap.Cache("64KiB"))
            assert cache in _cache.all_caches()
            del made[:3]

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(len(found), len({id(cache) for pair in found for cache in pair}))
"""


def test_threads_that_unpickle_a_cache_of_another_process_at_once_share_one(tmp_path):
    write(tmp_path / "a", bytes(100_000))
    for _ in range(ROUNDS // 10):
        assert printed(CACHES, tmp_path / "a", pickle.dumps(fastmap.Cache(SMALLEST)).hex()) == "160 1"


@pytest.mark.skipif(IS_LOCKED, reason="an interpreter with a lock")
def test_the_package_needs_no_lock_of_the_interpreters():
    assert printed("import sys, fastmap; print(sys._is_gil_enabled())") == "False"
