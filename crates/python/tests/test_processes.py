"""Children by fork, spawn and forkserver; processes that end in all ways; machines that lack something."""

import gc
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from helpers import SMALLEST, cannot_run, ended, noise, printed, script_printed, until, write

import fastmap

METHODS = ["fork", "spawn", "forkserver"]

READERS = """
    import multiprocessing, sys, warnings
    import numpy as np
    import fastmap

    def sums(array, rows):
        return int(array.sum()), int(fastmap.gather(array, rows).sum()), int(array[rows].sum()), array.mapping.engine

    def sum_of(arguments):
        return sums(*arguments)

    def to_queue(queue, *arguments):
        queue.put(sums(*arguments))

    if __name__ == "__main__":
        method, folder = sys.argv[1:]
        context = multiprocessing.get_context(method)
        for cache in None, "64KiB":
            name = f"{folder}/{cache}"
            stored = fastmap.memmap(name, "u2", "w+", 6, (300, 1000), cache=cache)
            stored[:] = np.arange(300)[:, None]
            if method == "fork":
                # Unflushed.
                arrays = [stored]
            else:
                del stored
                arrays = []
            arrays.append(fastmap.memmap(name + "r", "u2", "w+", 6, (300, 1000)))
            arrays[-1][:] = np.arange(300)[:, None]
            arrays.append(fastmap.memmap(name + "r", "u2", "r", 6, (300, 1000), cache=cache))
            if method != "fork":
                arrays.append(fastmap.memmap(name, "u2", "r", 6, (300, 1000), cache=cache))
            rows = [7, 299, 7, -2]
            expected = (299 * 300 // 2 * 1000, (7 + 299 + 7 + 298) * 1000)
            for array in arrays:
                with context.Pool(2) as pool:
                    results = pool.map(sum_of, [(array, rows)] * 3)
                queue = context.Queue()
                child = context.Process(target=to_queue, args=(queue, array[:, ::2], rows))
                child.start()
                assert queue.get()[:2] == (expected[0] // 2, expected[1] // 2)
                child.join()
                assert child.exitcode == 0
                for result in results:
                    assert result[:3] == (*expected, expected[1]), result
                if method != "fork" and array.filename == name:
                    # Which nobody has open to write.
                    assert {result[3] for result in results} == {"fastmap" if cache else "kernel"}, results
                assert sums(array, rows)[:2] == expected
        print("done")
"""


@pytest.mark.parametrize("method", METHODS)
def test_children_read_arrays_of_their_parent(tmp_path, method):
    assert script_printed(tmp_path, READERS, method, tmp_path) == "done"


WRITERS = """
    import multiprocessing, os, sys
    import numpy as np
    import fastmap

    def store(array, row):
        assert array[row, 0] == row and array[200, 0] == 77
        array[row] = 5
        array.flush()
        if row == 3:
            os._exit(0)

    if __name__ == "__main__":
        method, folder, cache = sys.argv[1:]
        context = multiprocessing.get_context(method)
        a = fastmap.memmap(folder + "/a", "u2", "w+", 6, (300, 1000), cache=cache or None)
        a[:] = np.arange(300)[:, None]
        a.flush()
        a[200] = 77
        children = [context.Process(target=store, args=(a, row)) for row in (3, 9)]
        for child in children:
            child.start()
        # Beside them, on a page of theirs.
        a[4] = 8
        for child in children:
            child.join()
        print(*[child.exitcode for child in children])
        print(*[int(a[row, 0]) for row in (3, 4, 9, 200, 10)])
        a[10] = 11
        a.flush()
        file = np.fromfile(folder + "/a", "u2", offset=6).reshape(300, 1000)
        print(*[int(file[row, 999]) for row in (3, 4, 9, 200, 10)])
"""


# Of another program's processes one at a time has a file in a cache to store to it: the test below.
@pytest.mark.parametrize("method, cache", [*[(method, "") for method in METHODS], ("fork", SMALLEST)])
def test_children_and_parent_store_to_one_array(tmp_path, method, cache):
    lines = script_printed(tmp_path, WRITERS, method, tmp_path, cache).splitlines()
    assert lines == ["0 0", "5 8 5 77 10", "5 8 5 77 11"]


LOADER = """
    import multiprocessing, pickle, queue, sys
    import numpy as np
    import fastmap

    class Rows:
        def __init__(self, name, cache, how):
            self.array = fastmap.memmap(name, "f4", "r", shape=(2000, 100), cache=cache)
            self.how = how

        def __getitem__(self, rows):
            if self.how == "views":
                return [self.array[row] for row in rows]
            if self.how == "copies":
                return [np.array(self.array[row]) for row in rows]
            return fastmap.gather(self.array, rows)

    def work(data, todo, done):
        for number, rows in iter(todo.get, None):
            try:
                done.put((number, pickle.dumps(data[rows])))
            except BaseException as error:
                done.put((number, pickle.dumps(repr(error))))

    if __name__ == "__main__":
        method, name, cache, how = sys.argv[1:]
        shadow = np.random.default_rng(3).random((2000, 100)).astype("f4")
        shadow.tofile(name)
        data = Rows(name, cache or None, how)
        context = multiprocessing.get_context(method)
        chance = np.random.default_rng(4)
        for epoch in range(2):
            todo, done = context.Queue(), context.Queue()
            workers = [context.Process(target=work, args=(data, todo, done), daemon=True) for _ in range(2)]
            for worker in workers:
                worker.start()
            batches = np.array_split(chance.permutation(2000), 20)
            for batch in enumerate(batches):
                todo.put(batch)
            # The parent reads beside them.
            assert (data[[5, 6]] == shadow[[5, 6]]).all()
            for _ in batches:
                number, rows = done.get(timeout=40)
                rows = pickle.loads(rows)
                assert not isinstance(rows, str), rows
                assert (np.array(rows) == shadow[batches[number]]).all()
            for _ in workers:
                todo.put(None)
            for worker in workers:
                worker.join()
                assert worker.exitcode == 0
        print("done")
"""


@pytest.mark.parametrize("how", ["gather", "views"])
@pytest.mark.parametrize("method, cache", [("fork", ""), ("fork", SMALLEST), ("spawn", SMALLEST)])
def test_workers_that_load_batches_get_their_rows(tmp_path, method, cache, how):
    assert script_printed(tmp_path, LOADER, method, tmp_path / "table", cache, how) == "done"


def test_an_array_that_is_made_after_a_pool_was_forked_reaches_its_workers(tmp_path):
    code = """
        import multiprocessing, sys
        import fastmap

        def total(array):
            return int(array.sum())

        if __name__ == "__main__":
            folder = sys.argv[1]
            first = fastmap.memmap(folder + "/a", mode="w+", shape=100_000, cache="64KiB")
            first[:] = 1
            with multiprocessing.get_context("fork").Pool(1) as pool:
                print(pool.apply_async(total, (first,)).get(10))
                # A cache that its worker does not know, in a file that it does not map.
                second = fastmap.memmap(folder + "/b", mode="w+", shape=100_000, cache="64KiB")
                second[:] = 2
                second.flush()
                del second
                second = fastmap.memmap(folder + "/b", mode="r", cache="64KiB")
                print(pool.apply_async(total, (second,)).get(10))
    """
    assert script_printed(tmp_path, code, tmp_path).splitlines() == ["100000", "200000"]


def test_what_a_child_made_by_fork_has_of_its_parents_says_what_it_is(tmp_path):
    # All that a child may ask for works, or is an exception that says why.
    code = """
        import os, pickle, sys, warnings
        import numpy as np
        import fastmap
        warnings.simplefilter("ignore")
        folder = sys.argv[1]
        a = fastmap.memmap(folder + "/a", mode="w+", shape=(100, 1000), cache="64KiB")
        a[:] = 1
        pid = os.fork()
        if not pid:
            try:
                assert a.sum() == 100_000 and a.mapping.engine == "kernel"
                assert fastmap.gather(a, [3, 4]).sum() == 2000 and a.prefetch([5], wait=True) == 1
                assert a.mapping.read(5, 3) == b"\\1\\1\\1"
                a.flush()
                a.mapping.advise("random")
                with a.mapping.pin(0, 10) as part:
                    assert part[0] == 1
                repr(a.mapping), repr(a), repr(a.cache)
                assert a.mapping.stats()["engine"] == "kernel"
                assert pickle.loads(pickle.dumps(a[5:])).sum() == 95_000
                b = fastmap.memmap(folder + "/a", mode="r", cache="64KiB")
                c = fastmap.memmap(folder + "/a", mode="r", cache=a.cache)
                d = fastmap.open(folder + "/a", cache="64KiB")
                assert b.sum() == c.sum() == 100_000 and d.engine == "kernel"
                d.close()
                try:
                    fastmap.Cache("1MiB")
                except OSError as error:
                    assert "fork" in str(error)
                grandchild = os.fork()
                if not grandchild:
                    os._exit(0 if a.sum() == 100_000 and fastmap.gather(a, [1]).all() else 9)
                assert os.waitpid(grandchild, 0)[1] == 0
                mapping = a.mapping
                del a, b, c
                mapping.close()
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert a.sum() == 100_000
        a[0] = 2
        a.flush()
        assert np.fromfile(folder + "/a", "u1").sum() == 101_000
        # New ones are in a cache again.
        b = fastmap.memmap(folder + "/b", mode="w+", shape=100_000, cache=a.cache)
        b[:] = 3
        print(b.mapping.engine)
    """
    assert printed(code, tmp_path) == "fastmap"


def test_a_child_that_executes_a_program_costs_nothing(tmp_path):
    a = fastmap.memmap(tmp_path / "a", mode="w+", shape=300_000, cache=SMALLEST)
    a[:] = 1
    for _ in range(3):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        subprocess.run("true", shell=True, check=True)
    assert a.mapping.engine == "fastmap" and a.sum() == 300_000


def test_a_child_stores_while_its_parent_does_and_both_are_in_the_file(tmp_path):
    code = """
        import os, sys, threading
        import numpy as np
        import fastmap
        a = fastmap.memmap(sys.argv[1], "u4", "w+", shape=(512, 1024), cache="64KiB")
        for turn in range(3):
            over = threading.Event()
            def beside():
                number = 0
                while not over.is_set() or number < 50:
                    a[number % 256 * 2] += 1
                    number += 1
                counts.append(number)
            counts = []
            thread = threading.Thread(target=beside)
            thread.start()
            pid = os.fork()
            if not pid:
                for row in range(1, 512, 2):
                    a[row] += 1
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            over.set()
            thread.join()
            a[::2] = 0
        assert (a[1::2] == 3).all(), np.unique(a[1::2])
        a.flush()
        print(int(np.fromfile(sys.argv[1], "u4").sum()))
    """
    assert printed(code, tmp_path / "a") == str(256 * 1024 * 3)


# Ends.

ENDS = {
    "return": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("1 / 0", 1),
    "os._exit": ("os._exit(4)", 4),
    "os.abort": ("os.abort()", -signal.SIGABRT),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "a crash": ("import ctypes; ctypes.string_at(8)", -signal.SIGSEGV),
    "an exec": ("os.execv('/bin/sh', ['sh', '-c', 'exit 5'])", 5),
}


@pytest.mark.parametrize("how", ENDS)
def test_what_was_stored_is_in_the_file_however_a_process_ends(tmp_path, how):
    statement, status = ENDS[how]
    code = f"""
        import os, signal, sys
        import fastmap
        a = fastmap.memmap(sys.argv[1], mode="w+", shape=300_000, cache="1MiB")
        b = a[5:]
        a[:] = 7
        {statement}
    """
    assert ended(code, tmp_path / "a").returncode == status
    # By its keeper, where it could not itself.
    until(lambda: np.fromfile(tmp_path / "a", "u1").sum() == 7 * 300_000, "what was stored is in the file")
    a = fastmap.memmap(tmp_path / "a", cache=SMALLEST)
    assert (a == 7).all()


def test_a_process_at_whose_end_arrays_caches_and_threads_live_ends(tmp_path):
    code = """
        import atexit, sys, threading
        import fastmap
        class Cycle: pass
        cycle = Cycle()
        cycle.cycle = cycle
        cycle.array = a = fastmap.memmap(sys.argv[1], mode="w+", shape=300_000, cache="64KiB")
        a[:] = 1
        mapping = fastmap.open(sys.argv[1], cache="64KiB")
        view = memoryview(mapping)
        pin = mapping.pin(0, 10)
        pin.__enter__()
        def forever():
            while True:
                fastmap.gather(a, range(100))
                a[::4096] += 1
        threading.Thread(target=forever, daemon=True).start()
        atexit.register(lambda: print(a[1], flush=True))
        sys.modules["kept"] = [fastmap.memmap(sys.argv[1] + "2", mode="w+", shape=3, cache="64KiB"), fastmap.Cache("64KiB")]
    """
    for _ in range(3):
        assert printed(code, tmp_path / "a") == "1"


def test_one_process_at_a_time_has_a_file_in_a_cache_to_store_to_it(tmp_path):
    write(tmp_path / "a", bytes(100_000))
    a = fastmap.memmap(tmp_path / "a", cache=SMALLEST)
    a[0] = 1
    code = """
        import sys, fastmap, numpy
        for make in fastmap.memmap, lambda path, **how: fastmap.open(path, "r+", **how):
            try:
                map = numpy.asarray(make(sys.argv[1], cache="64KiB"))
            except BlockingIOError as error:
                print("mapped for writing by process" in str(error))
            else:
                print(map[0])
                map[1] += 1
    """
    assert printed(code, tmp_path / "a").splitlines() == ["True"] * 2
    assert (a[0], a[1]) == (1, 0)
    del a
    assert printed(code, tmp_path / "a").splitlines() == ["1"] * 2
    assert fastmap.memmap(tmp_path / "a", mode="r", cache=SMALLEST)[1] == 2


def test_another_process_that_writes_the_file_is_seen_by_readers(tmp_path):
    path = write(tmp_path / "a", bytes(100_000))
    for cache in None, SMALLEST:
        a = fastmap.memmap(path, mode="r", cache=cache)
        assert a[50_000] == 0
        subprocess.run([sys.executable, "-c", f"f = open({str(path)!r}, 'r+b'); f.seek(50_000); f.write(b'x')"], check=True)
        assert a[50_000] == ord("x") and fastmap.gather(a, [50_000]) == [ord("x")]
        write(path, bytes(100_000))


# Signals.


@pytest.mark.parametrize("when", ["before", "twice", "after", "off"])
def test_pythons_handler_of_faults_does_not_take_those_of_arrays(tmp_path, when):
    # pytest, notebooks and -X dev switch it on.
    code = """
        import faulthandler, sys
        import fastmap
        when = sys.argv[2]
        faulthandler.disable()
        if when != "after":
            faulthandler.enable()
        a = fastmap.memmap(sys.argv[1], mode="r+", cache="64KiB")
        assert a[::4096].sum() == 0
        if when == "off":
            faulthandler.disable()
        elif when != "before":
            faulthandler.enable()
        a[:] = 1
        assert a.sum() == 4 << 20
        b = fastmap.memmap(sys.argv[1], mode="r+", cache="64KiB")
        print(b.sum())
    """
    done = ended(code, write(tmp_path / "a", bytes(4 << 20)), when)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{4 << 20}\n", "")


@pytest.mark.parametrize("when", ["before", "after", "off", "again"])
@pytest.mark.parametrize("first", ["", "faulthandler"])
def test_what_is_not_fastmaps_goes_to_pythons_handler_of_faults_if_it_is_on(tmp_path, when, first):
    code = """
        import faulthandler, mmap, os, sys
        import fastmap
        path, when = sys.argv[1:]
        if when == "before":
            faulthandler.enable()
        a = fastmap.memmap(path, mode="r+", cache="64KiB")
        if when != "before":
            faulthandler.enable(all_threads=False)
        if when in ("off", "again"):
            faulthandler.disable()
        if when == "again":
            faulthandler.enable(file=sys.stderr)
        b = fastmap.memmap(path + "2", mode="r")
        os.truncate(path + "2", 0)
        try:
            assert b[5000] == 0
            sum(range(1000))
        except OSError:
            print("told", a.sum(), flush=True)
        with open(path + "3", "r+b") as file:
            other = mmap.mmap(file.fileno(), 8192)
            file.truncate(0)
        def here():
            return other[5000]
        here()
    """
    write(tmp_path / "a2", bytes(1 << 20))
    write(tmp_path / "a3", bytes(8192))
    command = [sys.executable, *(["-X", first] if first else []), "-c", textwrap.dedent(code), write(tmp_path / "a", bytes(1 << 20)), when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "told 0\n"), done.stderr
    assert done.stderr.count("Bus error") == done.stderr.count("in here") == (when != "off")


def test_a_crash_of_the_program_is_still_reported(tmp_path):
    code = """
        import ctypes, faulthandler, sys
        import fastmap
        faulthandler.enable()
        a = fastmap.memmap(sys.argv[1], mode="w+", shape=100_000, cache="64KiB")
        a[:] = 1
        def here():
            ctypes.string_at(8)
        here()
    """
    done = ended(code, tmp_path / "a")
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr and "in here" in done.stderr


def test_signals_of_python_come_while_arrays_are_used(tmp_path):
    code = """
        import signal, sys
        import numpy as np
        import fastmap
        came = []
        signal.signal(signal.SIGALRM, lambda *_: came.append(fastmap.gather(a, [7, 900])[:, 0].tolist()))
        a = fastmap.memmap(sys.argv[1], "u4", "w+", shape=(1024, 1024), cache="64KiB")
        a[:] = np.arange(1024)[:, None]
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while len(came) < 50:
            assert a.sum(dtype="u8") == 1023 * 512 * 1024
            a.flush()
            assert (fastmap.gather(a, range(0, 1024, 3)) == np.arange(0, 1024, 3)[:, None]).all()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert all(rows == [7, 900] for rows in came)
        def stop(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            while True:
                a.sum()
        except KeyboardInterrupt:
            pass
        a[5] = 1
        del a
        print(int(np.fromfile(sys.argv[1], "u4").reshape(1024, 1024)[5].sum()))
    """
    assert printed(code, tmp_path / "a") == "1024"


# What a machine may lack.

WITHOUT = """
    import ctypes, os, struct, sys, warnings

    def refuse(number, errno):
        # seccomp(2): a filter that has the call fail.
        def of(code, jump_true, jump_false, k):
            return struct.pack("<HBBI", code, jump_true, jump_false, k)
        filters = of(0x20, 0, 0, 0) + of(0x15, 0, 1, number) + of(0x06, 0, 0, 0x50000 | errno) + of(0x06, 0, 0, 0x7fff0000)
        kept = ctypes.create_string_buffer(filters)
        program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", 4, ctypes.addressof(kept)))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()

    refuse(323, int(sys.argv[2]))
    import numpy as np
    import fastmap
    folder = sys.argv[1]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        a = fastmap.memmap(folder + "/a", "u2", "w+", shape=(100, 1000), cache="1MiB")
        a[:] = np.arange(100)[:, None]
        a.flush()
        with fastmap.open(folder + "/a", cache="1MiB") as mapping:
            assert mapping.read(0, 2) == b"\\0\\0" and mapping.engine == "kernel"
    assert a.mapping.engine == "kernel" and fastmap.gather(a, [7, 3])[:, 0].tolist() == [7, 3]
    assert a.prefetch([5], wait=True) == 1
    assert (np.fromfile(folder + "/a", "u2").reshape(100, 1000) == a).all()
    assert {it.category for it in said} == {RuntimeWarning}
    print("userfaultfd" in str(said[0].message), "fastmap doctor" in str(said[0].message))
"""


@pytest.mark.parametrize("errno", [1, 38])
def test_without_userfaultfd_arrays_are_the_kernels_and_it_is_said(tmp_path, errno):
    assert printed(WITHOUT, tmp_path, errno) == "True True"


def test_a_disk_that_is_full_is_an_error_of_flush_and_nothing_is_lost(tmp_path):
    if os.geteuid() != 0:
        cannot_run("only root can mount a small disk")
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], capture_output=True, text=True)
    if made.returncode != 0:
        cannot_run(f"no mkfs.ext4: {made.stderr}")
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True)
    if mounted.returncode != 0:
        cannot_run(f"no loop device can be mounted: {mounted.stderr}")
    try:
        code = """
            import os, sys, fastmap
            import numpy as np
            folder = sys.argv[1]
            a = fastmap.memmap(folder + "/a", mode="w+", shape=8 << 20, cache="1MiB")
            a[: 256 << 10] = 1
            a.flush()
            fill = open(folder + "/fill", "wb", 0)
            try:
                while True:
                    fill.write(bytes(1 << 16))
            except OSError:
                pass
            a[4 << 20 : (4 << 20) + (512 << 10)] = 2
            try:
                a.flush()
                print("no error")
            except OSError as error:
                print(error.errno)
            # What was not accepted is stored again, in a mapping made anew.
            del a
            fill.truncate(0)
            os.fsync(fill.fileno())
            a = fastmap.memmap(folder + "/a", mode="r+", shape=8 << 20, cache="1MiB")
            assert (a[: 256 << 10] == 1).all()
            a[4 << 20 : (4 << 20) + (512 << 10)] = 2
            a.flush()
            print(int(np.fromfile(folder + "/a", "u1").sum()))
        """
        lines = printed(code, folder).splitlines()
        assert lines == ["6", str((256 << 10) + 2 * (512 << 10))]
    finally:
        subprocess.run(["umount", folder], check=True)


def test_content_is_right_under_a_limit_of_the_process_on_files(tmp_path):
    code = """
        import resource, sys, fastmap
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = []
        for number in range(300):
            kept.append(fastmap.memmap(sys.argv[1], mode="r", cache=kept[0].cache if kept else "64KiB"))
        assert all(array[5] == 5 for array in kept)
        print(len({array.mapping.engine for array in kept}))
    """
    content = noise(100_000, 40)
    content[5] = 5
    assert printed(code, write(tmp_path / "a", content.tobytes())) == "1"
