"""A file that is cut while it is mapped: exceptions."""

import os
import signal

import numpy as np
import pytest
from helpers import CACHES, PAGE, SMALLEST, ended, noise, printed, write

import fastmap

SIZE = 1 << 20


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_calls_that_reach_past_the_end_raise_and_others_go_on(tmp_path, mode, cache):
    shadow = noise(SIZE, 20).reshape(256, PAGE)
    path = write(tmp_path / "a", shadow.tobytes())
    a = fastmap.memmap(path, mode=mode, shape=shadow.shape, cache=cache)
    os.truncate(path, 100 * PAGE)
    for rows in [255], [3, 100], [100, 3], np.arange(256):
        with pytest.raises(OSError) as error:
            fastmap.gather(a, rows)
        assert error.value.errno in (6, 14) and str(error.value)
    with pytest.raises(OSError):
        a.mapping.read(100 * PAGE, 1)
    with pytest.raises(OSError):
        a.mapping.read(99 * PAGE, 2 * PAGE)
    if mode != "r":
        with pytest.raises(OSError):
            a.mapping.write(200 * PAGE, b"1")
    with pytest.raises(OSError):
        a.prefetch([255], wait=True)
    with pytest.raises(OSError):
        a.mapping.prefetch([(0, 5), (100 * PAGE, 1)], wait=True)
    with pytest.raises(OSError):
        a.mapping.pin(100 * PAGE, 5).__enter__()
    a.prefetch([255])
    rows = [0, 99, 50]
    assert (fastmap.gather(a, rows) == shadow[rows]).all()
    assert a.mapping.read(99 * PAGE, PAGE) == shadow[99].tobytes()
    assert a.prefetch(rows, wait=True) == 3
    assert (a[:100] == shadow[:100]).all()
    # And what is there again is read again.
    write(path, shadow.tobytes())
    assert (fastmap.gather(a, [255, 0]) == shadow[[255, 0]]).all()
    assert (a == shadow).all()


CUT = """
    import os, sys, threading
    import numpy as np
    import fastmap
    path, what, cache = sys.argv[1:]
    a = fastmap.memmap(path, mode="r+", cache=cache or None)
    plain = np.asarray(a)
    os.truncate(path, 100 * 4096)
    print(a[0], flush=True)
    there = []
    if what == "load":
        there.append(a[200 * 4096])
    elif what == "store":
        a[200 * 4096] = 1
        sys.stdout.write("went on")
    elif what == "operator":
        sys.stdout.write("%d" % (plain[200 * 4096 :] + 1)[0])
    elif what == "sum":
        there.append(plain[200 * 4096 :].sum())
    elif what == "thread":
        thread = threading.Thread(target=lambda: there.append(plain[200 * 4096 :].sum()))
        thread.start()
        thread.join()
    print("went on")
"""

AGAIN = """
    import os, sys
    import numpy as np
    import fastmap
    path, cache = sys.argv[1:]
    a = fastmap.memmap(path, mode="r", cache=cache or None)
    plain = np.asarray(a)
    os.truncate(path, 100 * 4096)
    print(a[0], flush=True)
    raised = 0
    for access in (
        lambda: a[200 * 4096],
        lambda: a[200 * 4096],
        lambda: plain[150 * 4096 :].sum(),
        lambda: plain[255 * 4096 :].copy(),
        lambda: np.save(path + ".npy", plain),
        lambda: a.tofile(path + ".copy"),
    ):
        try:
            access()
            [None for _ in range(10)]
        except OSError:
            raised += 1
    print(raised)
"""


@pytest.mark.parametrize("cache", ["", SMALLEST])
def test_every_access_past_the_end_is_an_exception(tmp_path, cache):
    path = write(tmp_path / "a", noise(SIZE, 21).tobytes())
    assert printed(AGAIN, path, cache).split()[-1] == "6"


def test_a_large_part_past_the_end_takes_few_mappings(tmp_path):
    code = """
        import os, sys
        import numpy as np
        import fastmap
        a = fastmap.memmap(sys.argv[1], mode="w+", shape=300 << 20)
        plain = np.asarray(a)
        os.truncate(sys.argv[1], 4096)
        try:
            plain[4096:].sum()
            [None for _ in range(10)]
        except OSError:
            print(len(open("/proc/self/maps").readlines()) < 2000)
        # Other memory comes to lie there.
        del a, plain
        other = np.ones(300 << 20, np.uint8)
        print(int(other.sum()) == 300 << 20)
    """
    assert printed(code, tmp_path / "a") == "True\nTrue"


@pytest.mark.parametrize("cache", ["", SMALLEST])
@pytest.mark.parametrize("what", ["load", "store", "operator", "sum", "thread"])
def test_an_access_past_the_end_is_an_exception(tmp_path, what, cache):
    done = ended(CUT, write(tmp_path / "a", bytes(SIZE)), what, cache)
    # The interpreter looks for it after a call or a jump back: a call may come between.
    assert done.returncode == 1 and not done.stdout.endswith("went on\n"), done.stderr
    assert "OSError: [Errno 6]" in done.stderr
    assert os.path.getsize(tmp_path / "a") == 100 * PAGE


def test_in_a_cache_zeros_are_gone_with_the_last_mapping_of_the_file(tmp_path):
    code = """
        import os, sys
        import numpy as np
        import fastmap
        path, whole = sys.argv[1], b"\\1" * (256 * 4096)
        cache = fastmap.Cache("1MiB")
        a = fastmap.memmap(path, mode="r+", shape=(256, 4096), cache=cache)
        other = fastmap.memmap(path, mode="r+", shape=(56, 4096), offset=200 * 4096, cache=cache)
        a[5] = 3
        os.truncate(path, 100 * 4096)
        try:
            (a[150:] + 1).sum()
        except OSError:
            print("cut")
        with open(path, "r+b") as file:
            file.seek(4096 * 100)
            file.write(whole[4096 * 100 :])
        for call in (
            lambda: a.flush(),
            lambda: fastmap.gather(other, [0]),
            lambda: fastmap.memmap(path, shape=(256, 4096), cache=cache),
        ):
            try:
                call()
            except OSError as error:
                print(error.errno)
        del a, other
        a = fastmap.memmap(path, mode="r+", shape=(256, 4096), cache=cache)
        assert a.mapping.engine == "fastmap"
        assert (a[5] == 3).all() and (a[100:] == 1).all()
        a[150:] = 7
        del a
        assert np.fromfile(path, np.uint8)[150 * 4096 :].tolist() == [7] * (106 * 4096)
    """
    assert printed(code, write(tmp_path / "a", bytes(SIZE))).split() == ["cut", "6", "6", "6"]


def test_mappings_of_a_file_that_begin_alike_are_forgotten_one_by_one(tmp_path):
    code = """
        import os, sys
        import fastmap
        path, which = sys.argv[1], int(sys.argv[2])
        cache = fastmap.Cache("1MiB")
        arrays = [fastmap.memmap(path, mode="r", shape=(pages, 4096), cache=cache) for pages in (256, 150)]
        assert len({a.ctypes.data for a in arrays}) == 1
        kept = arrays.pop(which)
        del arrays
        os.truncate(path, 100 * 4096)
        try:
            (kept[-10:] + 1).sum()
            sum(range(1000))
        except OSError:
            print("cut")
    """
    for which in range(2):
        assert printed(code, write(tmp_path / "a", bytes(SIZE)), which) == "cut"


@pytest.mark.parametrize("cache", ["", SMALLEST])
def test_what_was_no_part_of_the_file_does_not_become_zeros_by_asking_twice(tmp_path, cache):
    code = """
        import os, sys
        import numpy as np
        import fastmap
        a = fastmap.memmap(sys.argv[1], mode="r+", shape=(256, 4096), cache=sys.argv[2] or None)
        os.truncate(sys.argv[1], 100 * 4096)
        calls = {
            "load": lambda: a[200, 5],
            "gather": lambda: fastmap.gather(a, [200]),
            "read": lambda: a.mapping.read(200 * 4096, 5),
            "prefetch": lambda: a.prefetch([200], wait=True),
        }
        for name, call in calls.items():
            try:
                got = call()
            except OSError:
                continue
            print(name, got)
        # And when the file is whole again, what is stored is in it.
        with open(sys.argv[1], "r+b") as file:
            file.write(b"\1" * (256 * 4096))
        try:
            a[200, 5] = 7
            a.flush()
        except OSError:
            pass
        else:
            if np.fromfile(sys.argv[1], "u1")[200 * 4096 + 5] != 7:
                print("a store is lost, and nobody is told")
    """
    assert printed(code, write(tmp_path / "a", bytes(SIZE)), cache) == ""


@pytest.mark.parametrize("cache", CACHES)
def test_stores_before_a_cut_are_kept_as_far_as_there_is_a_file(tmp_path, cache):
    path = write(tmp_path / "a", bytes(SIZE))
    a = fastmap.memmap(path, mode="r+", cache=cache)
    a[: 16 * PAGE] = 1
    a[-16 * PAGE :] = 2
    os.truncate(path, 10 * PAGE + 5)
    a.flush()
    del a
    assert path.read_bytes() == b"\1" * (10 * PAGE + 5)


def test_the_kernels_own_signal_of_other_maps_is_left_alone(tmp_path):
    # The library has SIGBUS: that of maps which are not its own must end the program as ever, or come to its handler.
    code = """
        import mmap, os, sys, fastmap
        path = sys.argv[1]
        a = fastmap.memmap(path, mode="r+", cache="64KiB")
        a[0]
        with open(path + "2", "w+b") as file:
            file.truncate(8192)
            other = mmap.mmap(file.fileno(), 8192)
            file.truncate(0)
        print("before", flush=True)
        other[5000]
        print("went on")
    """
    done = ended(code, write(tmp_path / "a", bytes(SIZE)))
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "before\n")


def test_many_readers_of_a_file_that_is_cut_and_filled_again_get_its_bytes_or_an_error(tmp_path):
    code = """
        import os, sys, threading
        import numpy as np
        import fastmap
        path = sys.argv[1]
        a = fastmap.memmap(path, mode="r", shape=(256, 4096), cache="64KiB")
        over = threading.Event()
        wrong, counts = [], [0, 0]
        def read(seed):
            chance = np.random.default_rng(seed)
            while not over.is_set():
                rows = chance.integers(0, 256, 5)
                try:
                    got = fastmap.gather(a, rows)
                except OSError:
                    counts[1] += 1
                    continue
                counts[0] += 1
                for row, data in zip(rows, got):
                    # What is written again is there in part.
                    if not set(np.unique(data)) <= {0, row % 250 + 1}:
                        wrong.append((row, np.unique(data)))
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads: thread.start()
        content = b"".join(bytes([row % 250 + 1]) * 4096 for row in range(256))
        turn = 0
        while turn < 40 or counts[0] < 20 and turn < 4000:
            turn += 1
            os.truncate(path, 128 * 4096)
            with open(path, "r+b") as file:
                file.write(content)
        over.set()
        for thread in threads: thread.join()
        assert not wrong, wrong[:3]
        assert counts[0]
        print("done")
    """
    content = b"".join(bytes([row % 250 + 1]) * PAGE for row in range(256))
    assert printed(code, write(tmp_path / "a", content)) == "done"
