"""What the Python package is worth beside what one would use otherwise, with memory for part of the data.

    python arrays.py [--folder FOLDER] [--size MiB] [--memory MiB] [--repeat N] [--json FILE] [WORK ...]

Works: gather, at once, walk, memory, model, dask, objects (which is the table in MinIO, with 10 ms added to each request). Every case is a process of its own in a cgroup (as root; v1 or v2), begins with a cold file, and
compares its answer. Repetitions take turns. Printed: medians, least and greatest, and the ratio to the best rival.
"""

import argparse
import contextlib
import functools
import importlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import numpy as np

ROW = 512
PAGE = 4096


class Limit:
    """A cgroup with a limit on memory, page cache included."""

    def __init__(self, bytes):
        root = pathlib.Path("/sys/fs/cgroup")
        is_v1 = (root / "memory").is_dir()
        self.path = (root / "memory" if is_v1 else root) / f"fastmap-arrays-{os.getpid()}"
        try:
            self.path.mkdir()
        except OSError as error:
            sys.exit(f"arrays.py: cannot make the cgroup {self.path}: {error.strerror}: run it as root where cgroups may be written")
        (self.path / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(bytes))
        self.peak = self.path / ("memory.max_usage_in_bytes" if is_v1 else "memory.peak")
        self.is_v1 = is_v1

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self):
        if self.is_v1:
            (self.path / "memory.force_empty").write_text("0")
        self.path.rmdir()


def rows_of(numbers):
    """The rows of the table at some numbers: each value is known from its place."""
    numbers = np.asarray(numbers, np.uint64)
    return (numbers[:, None] * np.uint64(2654435761) + np.arange(ROW // 4, dtype=np.uint64)).astype(np.uint32)


def make_table(path, size):
    if path.exists() and path.stat().st_size == size:
        return
    with open(path, "wb") as file:
        for first in range(0, size // ROW, 1 << 15):
            rows_of(np.arange(first, min(first + (1 << 15), size // ROW))).tofile(file)
        os.fsync(file.fileno())


def make_cold(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def until(seconds, work, batches):
    """Does batches until the time is up; units of work a second."""
    begin, done = time.perf_counter(), 0
    for batch in batches:
        done += work(batch)
        if time.perf_counter() - begin > seconds:
            break
    return done / (time.perf_counter() - begin)


# gather: 100 thousand random rows. Rows a second.


def gather_batches(table):
    count = os.path.getsize(table) // ROW
    numbers = np.random.default_rng(4).integers(0, count, 100_000)
    return [numbers[i : i + 2000] for i in range(0, len(numbers), 2000)]


def check_rows(numbers, rows):
    for i in range(0, len(numbers), 2000):
        assert (np.asarray(rows[i : i + 2000]) == rows_of(numbers[i : i + 2000])).all(), "wrong rows"
    return len(numbers)


def mapped(table, advice=None):
    array = np.memmap(table, np.uint32, "r").reshape(-1, ROW // 4)
    if advice is not None:
        array._mmap.madvise(advice)
    return array


def gather_numpy(args, advice=None):
    array = mapped(args.table, advice)
    return until(args.seconds, lambda numbers: check_rows(numbers, array[numbers]), gather_batches(args.table))


def gather_numpy_random(args):
    import mmap

    return gather_numpy(args, mmap.MADV_RANDOM)


def advised_each(args):
    """Copies rows by their numbers, each of which is advised before."""
    import mmap

    array = mapped(args.table, mmap.MADV_RANDOM)
    advise = array._mmap.madvise

    def copy(numbers):
        for first in (numbers * ROW // PAGE * PAGE).tolist():
            advise(mmap.MADV_WILLNEED, first, PAGE)
        return array[numbers]

    return copy


def gather_willneed(args):
    copy = advised_each(args)
    return until(args.seconds, lambda numbers: check_rows(numbers, copy(numbers)), gather_batches(args.table))


def read_by(threads, fd, order):
    """Copies rows by their numbers, in an order, by threads of which each has a part."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads)

    def copy(numbers):
        out = np.empty((len(numbers), ROW // 4), np.uint32)

        def read(part):
            for at in part:
                os.preadv(fd, [out[at]], int(numbers[at]) * ROW)

        list(pool.map(read, np.array_split(order(numbers), threads)))
        return out

    return copy


def gather_pread(args):
    fd = os.open(args.table, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    copy = read_by(16, fd, lambda numbers: np.arange(len(numbers)))
    return until(args.seconds, lambda numbers: check_rows(numbers, copy(numbers)), gather_batches(args.table))


def gather_lmdb(args):
    import lmdb

    env = lmdb.open(str(args.table) + ".lmdb", readonly=True, readahead=False, lock=False)
    with env.begin() as transaction:

        def work(numbers):
            out = np.empty((len(numbers), ROW // 4), np.uint32)
            for at, number in enumerate(numbers.tolist()):
                out[at] = np.frombuffer(transaction.get(number.to_bytes(8, "big")), np.uint32)
            return check_rows(numbers, out)

        return until(args.seconds, work, gather_batches(args.table))


def gather_zarr(args):
    import zarr

    array = zarr.open(str(args.table) + ".zarr", mode="r")
    return until(args.seconds, lambda numbers: check_rows(numbers, array.oindex[numbers]), gather_batches(args.table))


def gather_fastmap(args, cache=True):
    import fastmap

    array = fastmap.memmap(args.table, np.uint32, "r", cache=args.cache if cache else None).reshape(-1, ROW // 4)
    out = np.empty((2000, ROW // 4), np.uint32)
    return until(args.seconds, lambda numbers: check_rows(numbers, fastmap.gather(array, numbers, out)), gather_batches(args.table))


def gather_fastmap_kernel(args):
    return gather_fastmap(args, cache=False)


# gather in one call: all 100 thousand rows, by whoever puts them in the file's order as well. Rows a second, the second time, of others.


def in_one_call(take):
    """A case where `take(args)` gives the function that copies rows by their numbers."""

    def run(args):
        copy = take(args)
        for seed in (5, 6):
            numbers = np.random.default_rng(seed).integers(0, os.path.getsize(args.table) // ROW, 100_000)
            rows, begin = None, time.perf_counter()
            rows = copy(numbers)
            seconds = time.perf_counter() - begin
        return check_rows(numbers, rows) / seconds

    return run


def in_order(copy):
    """Rows copied in the file's order, 2000 at a time, each to its place."""

    def run(numbers):
        out = np.empty((len(numbers), ROW // 4), np.uint32)
        order = np.argsort(numbers)
        for i in range(0, len(order), 2000):
            part = order[i : i + 2000]
            out[part] = copy(numbers[part])
        return out

    return run


def ordered_numpy(advice):
    def take(args):
        import mmap

        array = mapped(args.table, getattr(mmap, advice))
        return in_order(lambda numbers: array[numbers])

    return in_one_call(take)


def unordered_willneed(args):
    copy = advised_each(args)
    return lambda numbers: np.concatenate([copy(numbers[i : i + 2000]) for i in range(0, len(numbers), 2000)])


def ordered_willneed(args):
    return in_order(advised_each(args))


def ordered_pread(args):
    return read_by(8, os.open(args.table, os.O_RDONLY), np.argsort)


def at_once_fastmap(args):
    import fastmap

    # The output is 49 MiB.
    array = fastmap.memmap(args.table, np.uint32, "r", cache=args.memory - (128 << 20)).reshape(-1, ROW // 4)
    return lambda numbers: fastmap.gather(array, numbers)


def prepare_gather(args):
    import lmdb
    import zarr

    count = args.table.stat().st_size // ROW
    store = pathlib.Path(str(args.table) + ".lmdb")
    if not store.exists():
        env = lmdb.open(str(store), map_size=4 * args.table.stat().st_size)
        for first in range(0, count, 1 << 15):
            numbers = range(first, min(first + (1 << 15), count))
            with env.begin(write=True) as transaction:
                for number, row in zip(numbers, rows_of(numbers)):
                    transaction.put(number.to_bytes(8, "big"), row.tobytes(), append=True)
        env.close()
    store = pathlib.Path(str(args.table) + ".zarr")
    if not store.exists():
        array = zarr.create_array(str(store), shape=(count, ROW // 4), chunks=(8192, ROW // 4), dtype="uint32", compressors=None)
        for first in range(0, count, 1 << 15):
            array[first : first + (1 << 15)] = rows_of(range(first, min(first + (1 << 15), count)))


# walks: a sum over the table in pieces of 1 MiB. MiB of file covered a second.


def pieces(array, order):
    step = (1 << 20) // ROW
    firsts = range(0, len(array), step)
    return [(first, min(first + step, len(array))) for first in (reversed(firsts) if order == "reversed" else firsts)]


def walk(args, array, order):
    total, begin = 0, time.perf_counter()
    for round in range(2):
        if round == 1:
            # Memory is full, and has been replaced.
            total, begin = 0, time.perf_counter()
        for first, last in pieces(array, order):
            part = array[first:last]
            if order == "rows":
                part = part[::16]
            elif order == "reversed":
                part = part[::-1]
            total += int(part.sum(dtype=np.uint64))
    seconds = time.perf_counter() - begin
    assert total == json.loads((args.folder / "sums").read_text())["rows" if order == "rows" else "all"], "wrong sum"
    return len(array) * ROW / seconds / (1 << 20)


def prepare_walks(args):
    sums = {"all": 0, "rows": 0}
    for first in range(0, args.size // ROW, 2048):
        rows = rows_of(np.arange(first, first + 2048))
        sums["all"] += int(rows.sum(dtype=np.uint64))
        sums["rows"] += int(rows[::16].sum(dtype=np.uint64))
    (args.folder / "sums").write_text(json.dumps(sums))


def walk_numpy(order, advice):
    def run(args):
        import mmap

        return walk(args, mapped(args.table, getattr(mmap, advice)), order)

    return run


def walk_willneed(order):
    """Advises each piece before it comes to it, eight ahead."""

    def run(args):
        import mmap

        array = mapped(args.table, mmap.MADV_RANDOM)
        walk_pieces = pieces(array, order)

        class Ahead:
            def __len__(self):
                return len(array)

            def __getitem__(self, part):
                at = walk_pieces.index((part.start, part.stop))
                first, last = walk_pieces[(at + 8) % len(walk_pieces)]
                array._mmap.madvise(mmap.MADV_WILLNEED, first * ROW, (last - first) * ROW)
                return array[part]

        return walk(args, Ahead(), order)

    return run


def walk_fastmap(order):
    def run(args):
        import fastmap

        array = fastmap.memmap(args.table, np.uint32, "r", cache=args.cache)
        if order == "reversed":
            array.mapping.advise("backward")
        return walk(args, array.reshape(-1, ROW // 4), order)

    return run


# memory: all of it there, warm. Operations a second.


def in_memory(kind):
    def run(args):
        import fastmap

        maker = np.memmap if kind == "numpy" else fastmap.memmap
        array = maker(args.small, np.uint32, "r", shape=(1 << 15, ROW // 4))
        flat = array.reshape(-1)
        index = np.random.default_rng(1).integers(0, len(array), 1000)
        array.sum()
        result = {}

        def time_of(name, run, count):
            run()
            best = min(_timed(run) for _ in range(7))
            result[name] = count / best

        time_of("element", lambda: [flat[i] for i in range(20000)], 20000)
        time_of("slice", lambda: [array[i : i + 2] for i in range(10000)], 10000)
        time_of("ufunc", lambda: np.add(array, 1), 1)
        time_of("sum", lambda: array.sum(), 1)
        time_of("fancy", lambda: array[index], 1)
        return result

    return run


def _timed(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


# model: layers in a file of the format safetensors, larger than memory, read in turn for ten rounds. MiB a second.


def make_model(path, size):
    if path.exists() and abs(path.stat().st_size - size) < 1 << 20:
        return
    count, length = 32, size // 32 // 4096 * 4096
    header = {
        f"layers.{i}.weight": {"dtype": "F32", "shape": [length // 4096, 1024], "data_offsets": [i * length, (i + 1) * length]}
        for i in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        random = np.random.default_rng(7)
        for _ in range(count):
            random.random(length // 4, np.float32).tofile(file)
        os.fsync(file.fileno())


def rounds(args, tensors, names):
    """Ten rounds of a product with each layer; the first does not count."""
    vector = np.ones(1024, np.float32)
    results = []
    for round in range(11):
        if round == 1:
            begin = time.perf_counter()
        results.append(sum(float((tensors(name) @ vector).sum()) for name in names))
    seconds = time.perf_counter() - begin
    assert len(set(results)) == 1, "other sums in other rounds"
    return 10 * args.model.stat().st_size / seconds / (1 << 20)


def model_mmap(advice):
    def run(args):
        import mmap

        with open(args.model, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if advice != "the next layer":
            bytes.madvise(getattr(mmap, advice))
        names = list(header)

        def place(name):
            return (8 + length + at for at in header[name]["data_offsets"])

        def tensor(name):
            if advice == "the next layer":
                first, last = place(names[(names.index(name) + 1) % len(names)])
                bytes.madvise(mmap.MADV_WILLNEED, first // PAGE * PAGE, last - first // PAGE * PAGE)
            first, last = place(name)
            return np.frombuffer(bytes, np.float32, (last - first) // 4, first).reshape(header[name]["shape"])

        return rounds(args, tensor, names)

    return run


def model_fastmap(args):
    import fastmap

    weights = fastmap.safetensors(args.model, cache=args.cache)
    return rounds(args, weights.__getitem__, list(weights))


# dask: the mean of the table, two workers, each with half of the memory. MiB a second.


def dask_mean(kind):
    def run(args):
        import dask.array
        import dask.distributed
        import fastmap

        with dask.distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0) as cluster:
            with dask.distributed.Client(cluster):
                if kind == "fastmap":
                    array = fastmap.memmap(args.table, np.uint32, "r", cache=max((args.memory - (640 << 20)) // 2, 32 << 20))
                    mean = dask.array.from_array(array, chunks=(1 << 22)).mean(dtype=np.float64)
                else:
                    # numpy's pickles are the data: each task opens its part.
                    count, step = args.table.stat().st_size // 4, 1 << 22
                    parts = [
                        dask.array.from_delayed(dask.delayed(_part)(args.table, first, min(step, count - first)), (min(step, count - first),), np.uint32)
                        for first in range(0, count, step)
                    ]
                    mean = dask.array.concatenate(parts).mean(dtype=np.float64)
                begin = time.perf_counter()
                value = float(mean.compute())
                seconds = time.perf_counter() - begin
        expected = json.loads((args.folder / "sums").read_text())["all"] / (args.size // 4)
        assert abs(value - expected) < 1e-6 * expected, (value, expected)
        return args.table.stat().st_size / seconds / (1 << 20)

    return run


def _part(table, first, count):
    return np.memmap(table, np.uint32, "r", first * 4, (count,))


# objects: the table in a store. 1000 pages at random a second, opening included; MiB a second of walks, by one or by two workers of Dask's, the
# second time with what the first has left on the disk.

OBJECT = "bench/table"
PART = 8 << 20
# What is read is in the page cache of the local copy, too.
CACHE = "96MiB"


def s3fs_reads():
    import s3fs

    fs = s3fs.S3FileSystem()
    return lambda first, last: fs.cat_file(OBJECT, start=first, end=last)


def pyarrow_reads():
    import pyarrow.fs

    endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    file = pyarrow.fs.S3FileSystem(endpoint_override=endpoint, scheme="http").open_input_file(OBJECT)
    return lambda first, last: file.read_at(last - first, first)


READS = {"s3fs": s3fs_reads, "pyarrow": pyarrow_reads}


def page_numbers(args):
    return np.random.default_rng(8).integers(0, args.size // PAGE, 1000)


def check_pages(args, pages, begin):
    seconds = time.perf_counter() - begin
    rows = np.asarray(pages).view(np.uint32).reshape(-1, ROW // 4)
    count = PAGE // ROW
    assert (rows == rows_of((page_numbers(args)[:, None] * count + np.arange(count)).ravel())).all(), "wrong pages"
    return len(pages) / seconds


def objects_gather(kind, threads):
    def run(args):
        from concurrent.futures import ThreadPoolExecutor

        begin = time.perf_counter()
        read, numbers = READS[kind](), page_numbers(args) * PAGE
        with ThreadPoolExecutor(threads) as pool:
            pages = list(pool.map(read, numbers.tolist(), (numbers + PAGE).tolist()))
        return check_pages(args, np.frombuffer(b"".join(pages), np.uint32).reshape(len(pages), -1), begin)

    return run


def objects_gather_s3fs(args):
    import s3fs

    begin = time.perf_counter()
    starts = page_numbers(args) * PAGE
    pages = s3fs.S3FileSystem().cat_ranges([OBJECT] * len(starts), starts.tolist(), (starts + PAGE).tolist(), batch_size=64)
    return check_pages(args, np.frombuffer(b"".join(pages), np.uint32).reshape(len(pages), -1), begin)


def objects_gather_fastmap(args):
    import fastmap

    begin = time.perf_counter()
    array = fastmap.memmap("s3://" + OBJECT, np.uint32, "r", cache=CACHE)
    return check_pages(args, fastmap.gather(array.reshape(-1, PAGE // 4), page_numbers(args)), begin)


def check_sum(args, total, begin):
    seconds = time.perf_counter() - begin
    assert total == json.loads((args.folder / "sums").read_text())["all"], "wrong sum"
    return args.size / seconds / (1 << 20)


def objects_walk(kind, depth):
    """Parts of 8 MiB, so many of them under way."""

    def run(args):
        from concurrent.futures import ThreadPoolExecutor

        begin, total = time.perf_counter(), 0
        read = READS[kind]()
        with ThreadPoolExecutor(depth) as pool:
            ahead = []
            for first in range(0, args.size, PART):
                ahead.append(pool.submit(read, first, min(first + PART, args.size)))
                if len(ahead) == depth:
                    total += int(np.frombuffer(ahead.pop(0).result(), np.uint32).sum(dtype=np.uint64))
            total += sum(int(np.frombuffer(part.result(), np.uint32).sum(dtype=np.uint64)) for part in ahead)
        return check_sum(args, total, begin)

    return run


def objects_walk_fastmap(args):
    import fastmap

    begin = time.perf_counter()
    array = fastmap.memmap("s3://" + OBJECT, np.uint32, "r", cache=CACHE)
    step = PART // 4
    return check_sum(args, sum(int(array[at : at + step].sum(dtype=np.uint64)) for at in range(0, len(array), step)), begin)


@functools.cache
def _reads_of(kind):
    return READS[kind]()


def _sum_of(kind, first, last):
    return int(np.frombuffer(_reads_of(kind)(first, last), np.uint32).sum(dtype=np.uint64))


def _import(*names):
    for name in names:
        importlib.import_module(name)


def objects_dask(kind):
    def run(args):
        import dask.array
        import dask.distributed
        import fastmap

        with dask.distributed.LocalCluster(n_workers=2, threads_per_worker=4, dashboard_address=None, memory_limit=0) as cluster:
            with dask.distributed.Client(cluster) as client:
                # What workers import is no matter of the store.
                client.run(_import, "dask.array", *([kind] if kind == "fastmap" else [kind, "pyarrow.fs"]))
                begin = time.perf_counter()
                if kind == "fastmap":
                    array = fastmap.memmap("s3://" + OBJECT, np.uint32, "r", cache=CACHE)
                    total = int(dask.array.from_array(array, chunks=PART // 4).sum(dtype=np.uint64).compute())
                else:
                    parts = [dask.delayed(_sum_of)(kind, first, min(first + PART, args.size)) for first in range(0, args.size, PART)]
                    total = sum(dask.compute(*parts))
                return check_sum(args, total, begin)

    return run


def delaying(port, seconds):
    """Passes connections on to a port, with a delay for each request; its own port."""
    import asyncio
    import multiprocessing

    async def copy(reader, writer, delay):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                await asyncio.sleep(delay)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader, writer):
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        await asyncio.gather(copy(reader, their_writer, seconds), copy(their_reader, writer, 0))

    async def serve(told):
        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20, backlog=1000)
        told.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    told = multiprocessing.Queue()
    multiprocessing.Process(target=lambda: asyncio.run(serve(told)), daemon=True).start()
    return told.get()


def prepare_objects(args, servers):
    sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
    import stores

    if stores.minio_path() is None:
        sys.exit("arrays.py: no MinIO: scripts/minio builds it")
    (args.folder / "minio").mkdir(exist_ok=True)
    endpoint = servers.enter_context(stores.minio(args.folder / "minio"))
    with open(args.table, "rb") as file:
        stores.put(endpoint, *OBJECT.split("/"), file)
    port = delaying(int(endpoint.rpartition(":")[2]), 0.01)
    os.environ.update(stores.KEYS, AWS_DEFAULT_REGION=stores.KEYS["AWS_REGION"], AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    os.environ["FASTMAP_TIER"] = str(args.folder / "tier")


ADVICE = {"as it is": "MADV_NORMAL", "sequential": "MADV_SEQUENTIAL", "random": "MADV_RANDOM"}
WORKS = {
    "gather": {
        "numpy": gather_numpy,
        "numpy, random": gather_numpy_random,
        "numpy, willneed a row": gather_willneed,
        "pread, 16 threads": gather_pread,
        "lmdb": gather_lmdb,
        "zarr": gather_zarr,
        "fastmap, no cache": gather_fastmap_kernel,
        "fastmap": gather_fastmap,
    },
    "at once": {
        **{f"numpy in order, {name}": ordered_numpy(advice) for name, advice in ADVICE.items()},
        "numpy, willneed a row": in_one_call(unordered_willneed),
        "numpy in order, willneed a row": in_one_call(ordered_willneed),
        "pread in order, 8 threads": in_one_call(ordered_pread),
        "fastmap": in_one_call(at_once_fastmap),
    },
    **{
        f"walk {order}": {
            **{f"numpy, {name}": walk_numpy(order, advice) for name, advice in ADVICE.items()},
            "numpy, willneed a piece": walk_willneed(order),
            "fastmap": walk_fastmap(order),
        }
        for order in ("forward", "rows", "reversed")
    },
    "memory": {"numpy": in_memory("numpy"), "fastmap": in_memory("fastmap")},
    # Without "random", which read 108 MiB a second where the others read 900 and more.
    **{
        f"model of {size} memories": {
            **{f"mmap, {name}": model_mmap(advice) for name, advice in ADVICE.items() if name != "random"},
            "mmap, willneed the next layer": model_mmap("the next layer"),
            "fastmap": model_fastmap,
        }
        for size in ("1.25", "2")
    },
    "dask": {"numpy": dask_mean("numpy"), "fastmap": dask_mean("fastmap")},
    "objects, gather": {
        "s3fs, 64 at a time": objects_gather_s3fs,
        "pyarrow, 64 threads": objects_gather("pyarrow", 64),
        "fastmap": objects_gather_fastmap,
    },
    "objects, gather again": {"pyarrow, 64 threads": objects_gather("pyarrow", 64), "fastmap": objects_gather_fastmap},
    "objects, walk": {
        **{f"{kind}, {depth} parts ahead": objects_walk(kind, depth) for kind in READS for depth in (4, 8)},
        "fastmap": objects_walk_fastmap,
    },
    "objects, walk again": {"pyarrow, 8 parts ahead": objects_walk("pyarrow", 8), "fastmap": objects_walk_fastmap},
    **{
        f"objects, dask{again}": {**{kind: objects_dask(kind) for kind in READS}, "fastmap": objects_dask("fastmap")}
        for again in ("", " again")
    },
}


def measure(args, work, rival):
    """One case, in a process of its own under the limit; what it returned, and the peak of memory."""
    if work.startswith("objects") and not work.endswith("again"):
        shutil.rmtree(args.folder / "tier", ignore_errors=True)
    for path in args.folder.rglob("*"):
        # The store is warm: it stands for one that is large.
        if path.is_file() and args.folder / "minio" not in path.parents:
            make_cold(path)
    limit = Limit(args.memory if work != "memory" else 4 << 30)
    try:
        given = ["--folder", args.folder, "--size", args.size >> 20, "--memory", args.memory >> 20, "--seconds", args.seconds]
        child = subprocess.run(
            [sys.executable, __file__, *map(str, given), "--one", work, rival],
            preexec_fn=limit.enter, stdout=subprocess.PIPE, text=True,
        )
        peak = int(limit.peak.read_text()) if limit.peak.exists() else 0
    finally:
        limit.leave()
    if child.returncode:
        sys.exit(f"arrays.py: {work} by {rival} failed with status {child.returncode}")
    return json.loads(child.stdout.splitlines()[-1]), peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/var/tmp/fastmap-arrays"))
    parser.add_argument("--size", type=int, default=2048, help="MiB of the table")
    parser.add_argument("--memory", type=int, default=512, help="MiB that each case gets")
    parser.add_argument("--seconds", type=float, default=10, help="most that a case of gather takes")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--rivals", help="only those with this in their name")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("works", nargs="*", metavar="WORK")
    args = parser.parse_args()
    args.size, args.memory = args.size << 20, args.memory << 20
    # Beside the cache are the interpreter and its arrays.
    args.cache = args.memory - (64 << 20)
    args.table, args.small = args.folder / "table", args.folder / "small"
    models = {work: args.folder / f"{work.split()[2]}.safetensors" for work in WORKS if work.startswith("model")}
    if args.one:
        args.model = models.get(args.one[0])
        print(json.dumps(WORKS[args.one[0]][args.one[1]](args)))
        return
    wanted = [work for work in WORKS if not args.works or any(work.startswith(name) for name in args.works)]
    args.folder.mkdir(parents=True, exist_ok=True)
    make_table(args.table, args.size)
    make_table(args.small, (1 << 15) * ROW)
    for work in models.keys() & set(wanted):
        make_model(models[work], int(args.memory * float(work.split()[2])))
    if "gather" in wanted:
        prepare_gather(args)
    if any(work.startswith(("walk", "dask", "objects")) for work in wanted):
        prepare_walks(args)
    with contextlib.ExitStack() as servers:
        if any(work.startswith("objects") for work in wanted):
            prepare_objects(args, servers)
        results = run_all(args, wanted)
    if args.json:
        args.json.write_text(json.dumps(results))


def run_all(args, wanted):
    results = {}
    for work in wanted:
        runs = {rival: [] for rival in WORKS[work] if not args.rivals or args.rivals in rival}
        for _ in range(args.repeat):
            for rival in runs:
                runs[rival].append(measure(args, work, rival))
        results[work] = runs
        show(work, runs)
    return results


def show(work, runs):
    first = next(iter(runs.values()))[0][0]
    for part in first if isinstance(first, dict) else [None]:
        values = {rival: [value if part is None else value[part] for value, _ in all] for rival, all in runs.items()}
        best = max((statistics.median(all) for rival, all in values.items() if not rival.startswith("fastmap")), default=float("nan"))
        print(work if part is None else f"{work}, {part}")
        for rival, all in values.items():
            peak = max(peak for _, peak in runs[rival]) >> 20
            median = statistics.median(all)
            print(f"  {rival:26} {median:12.4g} ({min(all):.4g}..{max(all):.4g})  {median / best:6.2f} of the best rival, {peak} MiB at most")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
