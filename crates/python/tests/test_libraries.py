"""Dask, xarray, joblib and Ray on mapped arrays; datasets, PyTorch and safetensors, steered."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers import SMALLEST, cannot_run, noise, printed, script_printed, write

import fastmap


@pytest.fixture
def table(tmp_path):
    shadow = noise(4 << 20, 70).view("u4").reshape(2048, 512)
    return write(tmp_path / "table", shadow.tobytes()), shadow


def mapped(table, cache=SMALLEST, mode="r"):
    return fastmap.memmap(table[0], "u4", mode, shape=table[1].shape, cache=cache)


@pytest.fixture
def ray(tmp_path):
    """The environment of a program that uses Ray: it talks to itself alone, and leaves nothing behind."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray has no wheel for this Python")
    # Its sockets have short names only.
    folder = tempfile.mkdtemp(prefix="ray.", dir="/tmp")
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    yield {**os.environ, **loopback, "RAY_TMPDIR": folder, "HOME": str(tmp_path)}
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def torch():
    """The environment of a program that uses PyTorch."""
    done = subprocess.run([Path(__file__).parents[3] / "scripts/torch", sys.executable], capture_output=True, text=True)
    if done.returncode != 0:
        cannot_run(done.stderr)
    return {**os.environ, "PYTHONPATH": done.stdout.strip()}


@pytest.fixture
def datasets(tmp_path):
    """The environment of a program that uses datasets: nothing is asked of a server, or left behind."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}


@pytest.mark.parametrize("cache", [None, SMALLEST])
@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_dask_computes_with_it_in_threads(table, scheduler, cache):
    import dask.array

    a = mapped(table, cache)
    shadow = table[1].astype("f8")
    lazy = dask.array.from_array(a, chunks=(256, 512))
    with_options = {"scheduler": scheduler}
    assert (lazy.sum(axis=0).compute(**with_options) == table[1].sum(axis=0, dtype="u8")).all()
    assert np.allclose((lazy.astype("f8").T @ lazy.astype("f8")).compute(**with_options), shadow.T @ shadow)
    assert (lazy[::-1, 5:9].compute(**with_options) == table[1][::-1, 5:9]).all()
    assert (lazy[[5, 1, 2000]].compute(**with_options) == table[1][[5, 1, 2000]]).all()
    whole = dask.array.from_array(a, chunks=-1).compute(**with_options)
    assert (whole == table[1]).all() and not np.shares_memory(whole, a), "a result is the file"
    if cache:
        assert a.cache.stats()["evicted_pages"] > 0


def test_dask_stores_into_it(tmp_path, table):
    import dask.array

    out = fastmap.memmap(tmp_path / "out", "u4", "w+", shape=table[1].shape, cache=SMALLEST)
    dask.array.store(dask.array.from_array(mapped(table), chunks=(100, 100)) + 1, out, lock=False)
    out.flush()
    assert (np.fromfile(tmp_path / "out", "u4") == table[1].ravel() + np.uint32(1)).all()


TOLD = """
    import os, sys
    import fastmap
    path, first = sys.argv[1:]
    if first == "dask":
        import dask.array, distributed
    a = fastmap.memmap(path, "u4", "r", shape=(2048, 512), cache="64KiB")
    import xarray
    chunked = xarray.DataArray(a, dims=("row", "column")).chunk(row=128)
    import dask.array
    from dask.sizeof import sizeof
    from dask.tokenize import tokenize
    from distributed.protocol import deserialize, serialize
    lazy = dask.array.from_array(a, chunks=128)
    class Mine(fastmap.memmap):
        pass
    mine = Mine(path, "u4", "r", shape=(2048, 512), cache=a.cache)
    for array in a, a[5:], mine, mine[5:]:
        assert sizeof(array) < 1000
        header, frames = serialize(array)
        assert header["serializer"] == "pickle" and sum(map(len, frames)) < 1000, header
        assert type(deserialize(header, frames)) is type(array)
    views = [a, a[1:], a[:-1], a[::-1], a.T, a[:, 0], a[:0], a.view("f4"), mine]
    assert len({tokenize(view) for view in views}) == len(views)
    assert tokenize(a) == tokenize(fastmap.memmap(path, "u4", "r", shape=(2048, 512), cache="128KiB"))
    assert a.cache.stats()["misses"] == 0, "the file was read to tell arrays apart"
    assert tokenize(a[3:]) == tokenize(a[3:]) and tokenize(a.copy()[3:]) == tokenize(a[3:].copy())
    token = tokenize(a)
    os.utime(path, (1, 1))
    assert tokenize(a) != token
    print(a.mapping.engine)
    # What has no name has bytes; what may be stored to is always another.
    private = fastmap.memmap(path, "u4", "c", shape=(2048, 512))
    assert sizeof(private) == sizeof(a.copy()) == 4 << 20 and tokenize(private) != tokenize(private)
    private[0] = 5
    assert (deserialize(*serialize(private))[0] == 5).all()
    stored = fastmap.memmap(path, "u4", "r+", shape=(2048, 512))
    assert tokenize(stored) != tokenize(stored)
    os.unlink(path)
    assert int(dask.array.from_array(a, chunks=512).sum(dtype="u8").compute()) == int(lazy.sum(dtype="u8").compute()) == int(a.sum(dtype="u8"))
    assert int(chunked.astype("u8").sum().compute()) == int(a.sum(dtype="u8"))
"""


@pytest.mark.parametrize("first", ["dask", "fastmap"])
def test_dask_takes_arrays_for_names_of_files_whichever_is_imported_first(table, first):
    assert printed(TOLD, table[0], first) == "fastmap"


DASK = """
    import os, sys
    import numpy as np

    def block(part):
        # What a worker has, beside what it was asked for.
        import fastmap
        parts = [part] if isinstance(part, fastmap.memmap) else []
        base = part
        while isinstance(base, np.ndarray):
            parts += [base] if isinstance(base, fastmap.memmap) else []
            base = base.base
        engine = parts[0].mapping.engine if parts else "a copy"
        capacity = parts[0].cache.capacity if parts and parts[0].cache else 0
        within = not parts or not parts[0].cache or parts[0].cache.stats()["resident_pages"] * 4096 <= capacity
        return np.array([[f"{os.getpid()} {engine} {capacity} {within} {int(part.sum(dtype='u8'))}"]])

    if __name__ == "__main__":
        import dask, dask.array
        import fastmap
        how, path, folder = sys.argv[1:]
        shadow = np.fromfile(path, "u4").reshape(2048, 512)
        a = fastmap.memmap(path, "u4", "r", shape=shadow.shape, cache="256KiB")
        lazy = dask.array.from_array(a, chunks=(128, 512))
        said = lazy.map_blocks(block, dtype="U99", meta=np.empty((0, 0), "U99"))
        total = lazy.sum(dtype="u8")
        if how == "processes":
            dask.config.set(scheduler="processes", num_workers=2)
            lines, total = said.compute().ravel(), total.compute()
        else:
            from distributed import Client, LocalCluster
            with LocalCluster(2, threads_per_worker=2, dashboard_address=None, memory_limit="1GiB", local_directory=folder) as cluster:
                with Client(cluster) as client:
                    lines, total = said.compute().ravel(), total.compute()
                    # Given by hand, and back.
                    future = client.submit(lambda array: array[5:7], a)
                    assert (future.result() == shadow[5:7]).all()
                    (scattered,) = client.scatter([a[100:200]])
                    assert client.submit(lambda array: int(array.sum(dtype="u8")), scattered).result() == shadow[100:200].sum(dtype="u8")
                    # Larger than all memory, and no reason to make room.
                    os.truncate(os.open(folder + "/large", os.O_CREAT | os.O_RDWR), 64 << 30)
                    large = fastmap.memmap(folder + "/large", "u4", "r", cache="256KiB")
                    kept = client.persist(dask.array.from_array(large, chunks=1 << 28))
                    assert int(kept[:: 1 << 28].sum().compute()) == 0
                    assert not any(client.run(lambda dask_worker: len(dask_worker.data.slow)).values()), "written to disk"
                    view = client.submit(fastmap.memmap, path, "u4", "r", shape=(2048, 512), cache="1MiB").result()
                    assert (view == shadow).all()
        assert total == shadow.sum(dtype="u8")
        workers, engines, capacities, within, sums = map(set, zip(*(line.split() for line in lines)))
        assert str(os.getpid()) not in workers
        assert {int(it) for it in sums} == {int(part.sum(dtype="u8")) for part in np.split(shadow, 16)}
        print(engines, capacities, within, len(workers) <= 2)
"""


@pytest.mark.parametrize("how", ["processes", "cluster"])
def test_workers_of_dask_map_the_file_each_with_its_own_budget(tmp_path, table, how):
    # Or the array would go to them as a copy.
    result = script_printed(tmp_path, DASK, how, table[0], tmp_path).splitlines()[-1]
    assert result == "{'fastmap'} {'262144'} {'True'} True"


def test_xarray_takes_it_as_data(table):
    import xarray

    a = mapped(table)
    data = xarray.DataArray(a, dims=("row", "column"), coords={"row": np.arange(2048)})
    assert (data.sel(row=[3, 3, 1000]).values == table[1][[3, 3, 1000]]).all()
    assert (data.isel(column=slice(None, None, -2)).sum("row").values == table[1][:, ::-2].sum(0)).all()
    assert float(data.max()) == table[1].max()
    dataset = xarray.Dataset({"a": data, "b": (("row",), fastmap.memmap(table[0], "u4", "r", shape=2048, cache=a.cache))})
    assert (dataset.chunk(row=512).mean().compute()["a"].values == table[1].mean()).all()
    assert np.shares_memory(data.values, a), "it was copied"
    assert a.cache.stats()["evicted_pages"] > 0


XARRAY = """
    import os, sys
    import dask, numpy as np, pickle, xarray
    import fastmap

    def look(part):
        return xarray.DataArray([f"{os.getpid()} {part.data.mapping.engine} {part.data.cache.capacity}"], dims="row")

    if __name__ == "__main__":
        shadow = np.fromfile(sys.argv[1], "u4").reshape(2048, 512)
        a = fastmap.memmap(sys.argv[1], "u4", "r", shape=shadow.shape, cache="256KiB")
        data = xarray.DataArray(a, dims=("row", "column"))
        assert len(pickle.dumps(data)) < 1500 and len(pickle.dumps(data[5:900])) < 1500
        assert (pickle.loads(pickle.dumps(data[5:900])).values == shadow[5:900]).all()
        with dask.config.set(scheduler="processes", num_workers=2):
            chunked = data.chunk(row=256)
            assert int(chunked.sum(dtype="u8").compute()) == shadow.sum(dtype="u8")
            template = xarray.DataArray(np.empty(8, "U99"), dims="row").chunk(row=1)
            lines = chunked.map_blocks(look, template=template).compute().values
        pids, engines, capacities = map(set, zip(*(line.split() for line in lines)))
        assert str(os.getpid()) not in pids
        print(engines, capacities)
"""


def test_xarray_in_chunks_sends_names_to_processes(tmp_path, table):
    assert script_printed(tmp_path, XARRAY, table[0]) == "{'fastmap'} {'262144'}"


JOBLIB = """
    import os, sys
    import numpy as np
    from joblib import Parallel, delayed, dump, load
    import fastmap

    def middle(array):
        return array[1:3]

    def look(array):
        whole = array
        while isinstance(whole, np.ndarray) and not isinstance(whole, fastmap.memmap):
            whole = whole.base
        engine = whole.mapping.engine if isinstance(whole, fastmap.memmap) else "numpy"
        return os.getpid(), engine, int(array.sum(dtype="u8"))

    if __name__ == "__main__":
        path, folder, backend = sys.argv[1:]
        shadow = np.fromfile(path, "u4").reshape(2048, 512)
        cache = fastmap.Cache("256KiB")
        a = fastmap.memmap(path, "u4", "r", shape=shadow.shape, cache=cache)
        parts = [a, a[::-1, 3], a[5:900], a.T]
        results = Parallel(2, backend, max_nbytes="64K")(delayed(look)(part) for part in parts * 2)
        for part, (pid, engine, total) in zip(parts * 2, results):
            # Of `multiprocessing` they are children made by fork(2).
            assert engine == ("kernel" if backend == "multiprocessing" else "fastmap"), engine
            assert total == part.sum(dtype="u8"), total
            assert (pid == os.getpid()) == (backend == "threading")
        # Plain views of one: numpy's by joblib's own means, and right.
        for pid, engine, total in Parallel(2, backend)(delayed(look)(np.asarray(a)) for _ in range(2)):
            assert total == shadow.sum(dtype="u8")
        # Back from a worker.
        back = Parallel(2, backend)(delayed(middle)(a) for _ in range(2))
        assert all((array == shadow[1:3]).all() for array in back)
        # Stores that the file has not yet.
        b = fastmap.memmap(folder + "/b", "u4", "w+", shape=(512, 512), cache=cache)
        b[:] = 5
        for view in ([b] if backend == "threading" else []) + [np.asarray(b), b.view(np.ndarray)[3:]]:
            for pid, engine, total in Parallel(2, backend)(delayed(look)(view) for _ in range(2)):
                assert total == 5 * view.size, "stores that were not flushed are missing: %d of %d" % (total, 5 * view.size)
        dump(a[:300], folder + "/dumped")
        assert (load(folder + "/dumped") == shadow[:300]).all()
        print("done")
"""


@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing"])
def test_workers_of_joblib_map_the_file(tmp_path, table, backend):
    assert script_printed(tmp_path, JOBLIB, table[0], tmp_path, backend) == "done"


RAY = """
    import os, sys
    import numpy as np
    import ray
    import fastmap

    def said(array):
        cache = array.cache
        within = cache.stats()["resident_pages"] * 4096 <= cache.capacity
        return os.getpid(), array.mapping.engine, cache.capacity, within, int(array.sum(dtype="u8"))

    @ray.remote
    class Worker:
        def __init__(self, array=None):
            self.array = array

        def look(self, array=None):
            return said(self.array if array is None else array)

        def same_cache(self, arrays):
            return all(array.cache is self.array.cache for array in arrays)

        def fill(self, path):
            self.array = fastmap.memmap(path, "u4", "w+", shape=1 << 18, cache="256KiB")
            self.array[:] = 7

    @ray.remote
    def rows(array, ids):
        return fastmap.gather(array, ids), array[5:7]

    @ray.remote
    def made(path):
        array = fastmap.memmap(path, "u4", "w+", shape=1000, cache="256KiB")
        array[:] = 3
        return array

    if __name__ == "__main__":
        path, folder = sys.argv[1:]
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
        shadow = np.fromfile(path, "u4").reshape(2048, 512)
        a = fastmap.memmap(path, "u4", "r", shape=shadow.shape, cache="256KiB")

        # Two workers at a time, of which each has a budget of its own.
        workers = [Worker.options(num_cpus=0).remote(a) for _ in range(2)]
        views = [a, a[5:], a[::-1, 3], a.T, a[7]]
        answers = [ray.get([worker.look.remote(view) for worker in workers]) for view in views]
        assert len({answer[0] for both in answers for answer in both} | {os.getpid()}) == 3, answers
        for view, both in zip(views, answers):
            assert [answer[1:] for answer in both] == [("fastmap", 1 << 18, True, int(np.asarray(view).sum(dtype="u8")))] * 2, both
        assert ray.get([worker.same_cache.remote(views) for worker in workers]) == [True, True]

        # By ray.put and ray.get, by a function's names, and back from a task.
        stored = ray.put(a[10:20])
        back = ray.get(stored)
        assert back.cache is a.cache and (back == shadow[10:20]).all()
        assert ray.get(workers[0].look.remote(stored))[1:] == ("fastmap", 1 << 18, True, int(shadow[10:20].sum(dtype="u8")))
        assert ray.get(ray.remote(lambda: said(a)).remote())[1:3] == ("fastmap", 1 << 18)
        gathered, view = ray.get(rows.remote(a, [7, 3, 7]))
        assert (gathered == shadow[[7, 3, 7]]).all() and (view == shadow[5:7]).all() and view.mapping.engine == "fastmap"

        # Sent as bytes it would not fit anywhere.
        os.truncate(os.open(folder + "/large", os.O_CREAT | os.O_RDWR), 64 << 30)
        large = fastmap.memmap(folder + "/large", "u4", "r", cache="256KiB")
        assert ray.get(ray.remote(lambda array: (array.nbytes, int(array[:: 1 << 30].sum()))).remote(large)) == (64 << 30, 0)

        # What workers made: a task, and an actor that is killed.
        assert (ray.get(made.remote(folder + "/made")) == 3).all()
        ray.get(workers[0].fill.remote(folder + "/filled"))
        ray.kill(workers[0])
        while not (np.fromfile(folder + "/filled", "u4") == 7).all():
            pass
        ray.shutdown()
        print("done")
"""


def test_workers_of_ray_map_the_file_each_with_its_own_budget(tmp_path, table, ray):
    assert script_printed(tmp_path, RAY, table[0], tmp_path, timeout=180, env=ray).splitlines()[-1] == "done"


EXAMPLES = Path(__file__).parent.parent / "examples"


SUM = 128.0 * sum(range(30_000))


@pytest.mark.parametrize("name, arguments, said, environment", [
    ("dask_cluster", [50_000], "mean of each column: 24999.5 to 24999.5", None),
    ("xarray_table", [300], "a day: 2.0\nall of them: 149.5", None),
    ("ray_tasks", [150_000], f"sum: {128.0 * sum(range(150_000))}\nrows 7 and 3: [7. 3.]", "ray"),
    ("datasets_shuffled", [30_000], f"sum of 30000 vectors: {SUM}", "datasets"),
    ("embedding_workers", [30_000], f"sum of 30000 vectors: {SUM}", "torch"),
    ("safetensors_larger", [8], "first walk, sum of means: 28.0\nsecond walk, sum of means: 28.0", None),
], ids=["dask", "xarray", "ray", "datasets", "torch", "safetensors"])  # fmt: skip
def test_the_examples_do_what_they_say(tmp_path, request, name, arguments, said, environment):
    environment = environment and request.getfixturevalue(environment)
    command = [sys.executable, EXAMPLES / f"{name}.py", *map(str, arguments)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
    # Whether there is anything to steer, in so little, is the machine's business.
    lines = [line for line in done.stdout.splitlines() if not line.startswith("steering: ")]
    assert (done.returncode, lines) == (0, said.splitlines()), done.stdout + done.stderr
    readmes = EXAMPLES.parents[2] / "README.md", EXAMPLES.parent / "README.md"
    assert any(f"examples/{name}.py" in readme.read_text() for readme in readmes)


def test_the_readme_says_what_works(tmp_path, monkeypatch):
    text = (EXAMPLES.parent.parent.parent / "README.md").read_text()
    block = text.split("```python\n")[1].split("```")[0]
    # All but the line that needs a store.
    lines = [line for line in block.splitlines() if "s3://" not in line]
    assert len(lines) == 4
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    model = len(header).to_bytes(8, "little") + header + np.array([3, 4], np.float32).tobytes()
    (tmp_path / "model.safetensors").write_bytes(model)
    with open(tmp_path / "table.f32", "wb") as table:
        table.truncate(1_000_000 * 128 * 4)
        table.seek(7 * 128 * 4)
        table.write(np.full(128, 7, np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    names = {"ids": [123_456, 7]}
    # The budgets are as large as memory may be.
    exec("\n".join(lines).replace("8GiB", "64MiB").replace("1GiB", "64MiB"), names)
    assert names["rows"][:, 5].tolist() == [0, 7] and names["weights"]["w"].tolist() == [3, 4]


def test_only_numpy_is_imported():
    code = """
        import sys
        import fastmap
        a = fastmap.memmap(sys.argv[1], mode="w+", shape=5, cache="64KiB")
        fastmap.gather(a, [1])
        others = "dask distributed xarray joblib pandas IPython safetensors cloudpickle ray torch".split()
        print(sorted(set(others) & set(sys.modules)))
    """
    with tempfile.TemporaryDirectory() as folder:
        assert printed(code, f"{folder}/a") == "[]"


def test_it_works_where_python_is_optimised_and_warnings_are_errors(tmp_path):
    code = """
        import fastmap, numpy as np, sys, pickle
        a = fastmap.memmap(sys.argv[1], "f4", "w+", shape=(100, 100), cache="64KiB")
        a[:] = 1
        a.flush()
        assert a.sum() == 10_000
        if fastmap.gather(a, [1, 2]).sum() != 200 or pickle.loads(pickle.dumps(a)).sum() != 10_000:
            sys.exit(1)
        del a
        with fastmap.open(sys.argv[1], cache="64KiB") as mapping:
            mapping.prefetch([(0, 5)])
    """
    for options in ["-W", "error"], ["-OO"], ["-I"], ["-X", "dev", "-W", "error"]:
        done = subprocess.run([sys.executable, *options, "-c", textwrap.dedent(code), tmp_path / "a"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), (options, done.stderr)
    assert os.path.getsize(tmp_path / "a") == 40_000
