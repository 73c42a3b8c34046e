"""Dask, xarray, joblib and Ray on mapped arrays."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from helpers import SMALLEST, noise, printed, script_printed, write

import fastmap


@pytest.fixture
def table(tmp_path):
    shadow = noise(4 << 20, 70).view("u4").reshape(2048, 512)
    return write(tmp_path / "table", shadow.tobytes()), shadow


def mapped(table, cache=SMALLEST, mode="r"):
    return fastmap.memmap(table[0], "u4", mode, shape=table[1].shape, cache=cache)


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
    if cache:
        assert a.cache.stats()["evicted_pages"] > 0


def test_dask_stores_into_it(tmp_path, table):
    import dask.array

    out = fastmap.memmap(tmp_path / "out", "u4", "w+", shape=table[1].shape, cache=SMALLEST)
    dask.array.store(dask.array.from_array(mapped(table), chunks=(100, 100)) + 1, out, lock=False)
    out.flush()
    assert (np.fromfile(tmp_path / "out", "u4") == table[1].ravel() + np.uint32(1)).all()


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
        lazy = dask.array.from_array(a, chunks=(128, 512), asarray=False)
        said = lazy.map_blocks(block, dtype="U99", meta=np.empty((0, 0), "U99"))
        total = lazy.sum(dtype="u8")
        if how == "processes":
            dask.config.set(scheduler="processes", num_workers=2)
            lines, total = said.compute().ravel(), total.compute()
        else:
            from distributed import Client, LocalCluster
            with LocalCluster(2, threads_per_worker=2, dashboard_address=None, memory_limit=0, local_directory=folder) as cluster:
                with Client(cluster) as client:
                    lines, total = said.compute().ravel(), total.compute()
                    # Given by hand, and back.
                    future = client.submit(lambda array: array[5:7], a)
                    assert (future.result() == shadow[5:7]).all()
                    (scattered,) = client.scatter([a[100:200]])
                    assert client.submit(lambda array: int(array.sum(dtype="u8")), scattered).result() == shadow[100:200].sum(dtype="u8")
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


def test_ray_maps_the_file(tmp_path, table):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed; it has no wheels for each Python")
    code = """
        import sys
        import numpy as np
        import ray
        import fastmap

        @ray.remote
        def look(array):
            return array.mapping.engine, int(array.sum(dtype="u8"))

        if __name__ == "__main__":
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            a = fastmap.memmap(sys.argv[1], "u4", "r", shape=(2048, 512), cache="256KiB")
            assert ray.get([look.remote(a), look.remote(a[5:])]) == [("fastmap", int(part.sum(dtype="u8"))) for part in (a, a[5:])]
            print("done")
    """
    assert script_printed(tmp_path, code, table[0], timeout=120).splitlines()[-1] == "done"


def test_only_numpy_is_imported():
    code = """
        import sys
        import fastmap
        a = fastmap.memmap(sys.argv[1], mode="w+", shape=5, cache="64KiB")
        fastmap.gather(a, [1])
        others = "dask distributed xarray joblib pandas IPython safetensors cloudpickle ray torch".split()
        print(sorted(set(others) & set(sys.modules)))
    """
    import tempfile

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
