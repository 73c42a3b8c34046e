"""Objects of stores: the same arrays as of files, whoever has the bytes."""

import errno
import io
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import stores
from helpers import cannot_run, ended, noise, refusal, script_printed, write

import fastmap

pytestmark = pytest.mark.usefixtures("tier")
COUNT = 1_000_003


@pytest.fixture
def tier(tmp_path, monkeypatch):
    """Local copies in a folder of the test's, and no credentials but the test's."""
    monkeypatch.setenv("FASTMAP_TIER", str(tmp_path / "tier"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in stores.KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def web(tmp_path):
    """A folder, and the URL that it is served at."""
    folder = tmp_path / "web"
    folder.mkdir()
    with stores.web(folder) as url:
        yield folder, url


@pytest.fixture(scope="session")
def moto():
    with stores.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def minio(tmp_path_factory):
    if stores.minio_path() is None:
        cannot_run("no MinIO: scripts/minio builds it")
    with stores.minio(tmp_path_factory.mktemp("minio")) as endpoint:
        yield endpoint


@pytest.fixture(params=["file", "web", "moto", "minio"])
def put(request, tmp_path, monkeypatch):
    """Puts bytes into a store, and says by which URL they are known."""
    if request.param == "file":
        return lambda key, content: f"file://{write(tmp_path / key, content)}"
    if request.param == "web":
        folder, url = request.getfixturevalue("web")
        return lambda key, content: f"{url}/{write(folder / key, content).name}"
    endpoint, bucket = request.getfixturevalue(request.param), f"bucket-{os.getpid()}-{time.time_ns()}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)

    def put_there(key, content):
        stores.put(endpoint, bucket, key, content)
        return f"s3://{bucket}/{key}"

    return put_there


def test_it_is_an_array_like_others(put):
    shadow = noise(4 * COUNT).view("<u4")
    url = put("array", shadow.tobytes())
    a = fastmap.memmap(url, "<u4", "r", cache="1MiB")
    assert (a.shape, a.dtype, a.mode, a.offset, a.filename) == ((COUNT,), np.dtype("<u4"), "r", 0, url)
    assert not a.flags.writeable and a.mapping.engine == "fastmap" and repr(a.mapping).endswith(f"of {url}, by fastmap>")
    rows = np.random.default_rng(1).integers(0, COUNT, 5000)
    assert (fastmap.gather(a, rows) == shadow[rows]).all()
    assert (a == shadow).all() and (a[::-7] == shadow[::-7]).all()
    assert a.prefetch(rows[:10], wait=True) == 10
    stats = a.mapping.stats()
    assert stats["fetched"] >= shadow.nbytes and stats["hit"] > 0 and stats["requests"] > 1 and stats["capacity"] == 1 << 20
    assert {"wasted", "retries", "hedges", "wrong", "misses"} <= stats.keys() and stats["wrong"] == 0
    # A part, in another order; and the end of it, which is local.
    b = fastmap.memmap(url, ">u2", "r", 4099, (100, 300), "F", cache=a.cache)
    assert (b == np.ndarray((100, 300), ">u2", shadow, 4099, order="F")).all()
    assert b.mapping.stats()["fetched"] == 0 and b.cache is a.cache
    assert fastmap.memmap(url, "u1", "r", 5, (0, 3)).shape == (0, 3)
    for view in a[3:7], a[::-1], a[5:].reshape(2, -1)[:, ::3], b.T:
        again = pickle.loads(pickle.dumps(view))
        assert type(again) is fastmap.memmap and (again == view).all() and again.filename == url
    with fastmap.open(url, offset=4 * COUNT - 7) as mapping:
        assert len(mapping) == 7 and bytes(mapping) == shadow.tobytes()[-7:] == mapping.read(0, 7)
        assert mapping.url == url and mapping.offset == 4 * COUNT - 7 and mapping.cache is None and not mapping.writable
        with mapping.pin(2, 3) as part:
            assert bytes(part) == shadow.tobytes()[-5:-2]
        mapping.advise("sequential")
        mapping.flush()
    assert mapping.closed


def test_weights_and_tables_are_read_from_it(put):
    import pyarrow as pa
    import pyarrow.parquet
    import safetensors.numpy

    tensors = {"a": noise(1 << 20).reshape(1024, -1), "b": np.arange(7, dtype="f4"), "none": np.zeros((0, 3), "f8")}
    weights = fastmap.safetensors(put("model", safetensors.numpy.save(tensors, {"is": "it"})), cache="1MiB")
    assert set(weights) == set(tensors) and weights.metadata == {"is": "it"}
    assert all((weights[name] == tensor).all() and weights[name].shape == tensor.shape for name, tensor in tensors.items())
    for wrong in b"1234", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{]":
        assert isinstance(refusal(lambda: fastmap.safetensors(put("wrong", wrong))), ValueError)
    table = pa.table({"number": np.arange(200_000), "text": [f"row {i % 1000}" for i in range(200_000)]})
    sink = io.BytesIO()
    pa.parquet.write_table(table, sink, row_group_size=20_000)
    mapping = fastmap.open(put("table.parquet", sink.getvalue()), cache="1MiB")
    file = pa.parquet.ParquetFile(pa.BufferReader(pa.py_buffer(mapping)))
    assert file.read_row_group(7, ["number"]).column("number").to_numpy().tolist() == list(range(140_000, 160_000))
    assert file.read().equals(table)


def test_what_cannot_be_opened_is_told(web, tmp_path):
    folder, url = web
    write(folder / "a", bytes(5000))
    write(folder / "empty", b"")
    for wrong in "ftp://host/x", "s3://bucket", "s3://", f"{url}/a\0", "http://host:port/", "http://me:hunter2@host/x":
        error = refusal(lambda: fastmap.open(wrong))
        assert isinstance(error, ValueError) and "hunter2" not in str(error), error
    for options in (
        {"offset": -1}, {"offset": 5000}, {"offset": 1 << 70}, {"length": 0}, {"length": 5001}, {"offset": 4999, "length": 2}, {"deadline": 0},
        {"deadline": -1}, {"deadline": float("nan")}, {"tier_limit": 0}, {"tier_limit": 1}, {"tier_limit": "much"}, {"cache": 1},
    ):  # fmt: skip
        assert isinstance(refusal(lambda: fastmap.open(f"{url}/a", **options)), (ValueError, OverflowError)), options
    assert isinstance(refusal(lambda: fastmap.open(f"{url}/empty")), ValueError)
    assert isinstance(refusal(lambda: fastmap.memmap(f"{url}/a", "u4", "r", 4097)), ValueError)
    assert isinstance(refusal(lambda: fastmap.memmap(f"{url}/a", "u4", "r", shape=2000)), ValueError)
    for mode in "r+", "c", "w+":
        error = refusal(lambda: fastmap.memmap(f"{url}/a", "u1", mode, shape=5))
        assert isinstance(error, io.UnsupportedOperation) and "read-only" in str(error), error
    assert isinstance(refusal(lambda: fastmap.open(f"{url}/a", "r+")), io.UnsupportedOperation)
    assert isinstance(refusal(lambda: fastmap.memmap(f"{url}/a", mode="r+")), io.UnsupportedOperation)
    missing = refusal(lambda: fastmap.open(f"{url}/none"))
    assert isinstance(missing, FileNotFoundError) and f"{url}/none" in str(missing)
    assert isinstance(refusal(lambda: fastmap.open(f"{url}/a", tier=write(tmp_path / "file", b"") / "below")), NotADirectoryError)
    assert isinstance(refusal(lambda: fastmap.open(f"{url}/a").write(0, b"1")), TypeError)
    write(folder / "denied", b"")
    assert isinstance(refusal(lambda: fastmap.open(f"{url}/a")), PermissionError)
    write(folder / "dead", b"")
    late = refusal(lambda: fastmap.open(f"{url}/a?X-Amz-Signature=hunter2", deadline=1))
    assert isinstance(late, TimeoutError) and "hunter2" not in str(late)


def test_credentials_that_are_wrong_or_missing_are_told_and_shown_to_nobody(minio, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", minio)
    stores.put(minio, "secrets", "a", b"12345")
    assert fastmap.open("s3://secrets/a").read(0, 5) == b"12345"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrongwrong")
    error = refusal(lambda: fastmap.open("s3://secrets/a"))
    assert isinstance(error, PermissionError) and "s3://secrets/a" in str(error) and "wrongwrong" not in str(error)


def test_a_store_that_does_not_answer_is_an_error_of_calls_and_others_go_on(web):
    folder, url = web
    write(folder / "a", noise(8 << 20).tobytes())
    mapping = fastmap.open(f"{url}/a", cache="1MiB", deadline=1)
    a = np.frombuffer(memoryview(mapping), "u1")
    write(folder / "dead", b"")
    beats, stop = [0], threading.Event()

    def beat():
        while not stop.wait(0.001):
            beats[0] += 1

    thread = threading.Thread(target=beat)
    thread.start()
    begin = time.monotonic()
    calls = [
        lambda: mapping.read(5_000_000, 10),
        lambda: fastmap.gather(a, [1, 4_000_000]),
        lambda: mapping.prefetch([(7_000_000, 1)], wait=True),
        lambda: mapping.pin(0, 1).__enter__(),
    ]
    for call in calls:
        error = refusal(call)
        assert isinstance(error, TimeoutError) and f"{url}/a" in str(error), error
    assert 0.9 * len(calls) < time.monotonic() - begin < 30 and beats[0] > 300, "nobody else could run"
    stop.set()
    thread.join()
    # It is forgiven when it answers again.
    os.unlink(folder / "dead")
    assert a.tobytes() == noise(8 << 20).tobytes()


LOAD = """
    import sys, numpy as np, fastmap
    a = fastmap.memmap(sys.argv[1], "u1", "r", deadline=1, cache="1MiB")
    open(sys.argv[2], "w").close()
    try:
        total = int(a.sum())
        for _ in range(1000):
            pass
    except OSError as error:
        print(error.errno, "close its mapping" in str(error))
    try:
        a.mapping.read(0, 1)
    except OSError as error:
        print(error.errno)
"""


def test_a_load_that_cannot_be_served_is_told_in_the_main_thread(web):
    folder, url = web
    write(folder / "a", noise(1000).tobytes())
    done = ended(LOAD, f"{url}/a", folder / "dead")
    assert done.returncode == 0 and done.stdout.split() == [str(errno.EIO), "True", str(errno.EIO)], done
    assert f"{url}/a: page at offset 0 cannot be served" in done.stderr and "deadline" in done.stderr


def test_an_object_that_changes_is_never_mixed(web):
    folder, url = web
    before, after = noise(4 << 20, 1), noise(4 << 20, 2)
    write(folder / "a", before.tobytes())
    a = fastmap.memmap(f"{url}/a", "u1", "r", cache="1MiB")
    assert a[-1] == before[-1]
    pickled = pickle.dumps(a[5:])
    write(folder / "a", after.tobytes())
    error = refusal(lambda: a.mapping.read(0, 10))
    assert isinstance(error, OSError) and error.errno == errno.ESTALE and f"{url}/a" in str(error)
    assert a[-1] == before[-1]
    assert (fastmap.memmap(f"{url}/a", "u1", "r", cache="1MiB") == after).all()
    error = refusal(lambda: pickle.loads(pickled))
    assert isinstance(error, OSError) and error.errno == errno.ESTALE


def test_a_file_that_is_named_like_a_url_is_reached_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("s3:/bucket")
    write("s3:/bucket/a", b"12345678")
    for name in Path("s3://bucket/a"), "./s3://bucket/a", "s3:/bucket/a", b"s3://bucket/a":
        assert fastmap.open(name).read(0, 8) == b"12345678" and fastmap.open(name).url is None
        assert fastmap.memmap(name, "u1", "r")[0] == ord("1")
    a = fastmap.memmap(Path("s3://bucket/a"), "u1", "r+", tier="nowhere", deadline=None)
    a[0] = 7
    a.flush()
    assert Path("s3:/bucket/a").read_bytes()[0] == 7 and not os.path.exists("nowhere")


FORKS = """
    import multiprocessing, sys, threading
    import numpy as np
    import fastmap
    url = sys.argv[1]
    a = fastmap.memmap(url, "u4", "r", cache="1MiB").reshape(-1, 64)

    def inherited(part):
        rows = np.arange(part, len(a), 7)
        return int(fastmap.gather(a, rows).sum(dtype="u8")) + int(a[part].sum())

    def sent(rows):
        return int(rows.sum(dtype="u8"))

    def own(name):
        b = fastmap.memmap(name, "u4", "r", cache="2MiB")
        return int(b.sum(dtype="u8")), b.mapping.stats()["requests"] > 0

    def main():
        # Others use it meanwhile.
        stop = threading.Event()
        def read():
            at = 0
            while not stop.is_set():
                at = (at + 7919) % len(a)
                a.mapping.read(at * 256, 256)
        threads = [threading.Thread(target=read) for _ in range(2)]
        [thread.start() for thread in threads]
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
            print(pool.map(inherited, range(7)))
            print(pool.map(sent, [a[::2], a[::-1], a[5:9, 3]]))
            print(pool.map(own, [url, url + "?id=2"]))
        stop.set()
        [thread.join() for thread in threads]

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_other_processes_have_it(web, tmp_path, way):
    folder, url = web
    shadow = noise(4 << 20).view("u4").reshape(-1, 64)
    write(folder / "a", shadow.tobytes())
    lines = script_printed(tmp_path, FORKS, f"{url}/a", way, timeout=120).splitlines()
    whole = [int(shadow[part::7].sum(dtype="u8")) + int(shadow[part].sum()) for part in range(7)]
    sent = [int(part.sum(dtype="u8")) for part in (shadow[::2], shadow, shadow[5:9, 3])]
    assert lines == [str(whole), str(sent), str([(int(shadow.sum(dtype="u8")), True)] * 2)]


def test_threads_share_it(web):
    folder, url = web
    shadow = noise(16 << 20).view("u4")
    write(folder / "a", shadow.tobytes())
    a = fastmap.memmap(f"{url}/a", "u4", "r", cache="1MiB", tier_limit="16MiB")
    wrong = []

    def read(seed):
        random = np.random.default_rng(seed)
        for _ in range(50):
            rows = random.integers(0, len(a), 300)
            start = int(random.integers(0, len(a) - 50_000))
            if not ((fastmap.gather(a, rows) == shadow[rows]).all() and (a[start : start + 50_000] == shadow[start : start + 50_000]).all()):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_it_works_under_the_command(web):
    folder, url = web
    write(folder / "a", noise(1 << 20).tobytes())
    code = f"import fastmap; print(int(fastmap.memmap({url + '/a'!r}, 'u1', 'r', cache='1MiB').sum()))"
    command = [sys.executable, "-m", "fastmap", "run", "--cache", "1MiB", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and int(done.stdout) == noise(1 << 20).sum(), done


def test_dask_knows_it_by_its_url_and_version(web):
    from dask.sizeof import sizeof
    from dask.tokenize import tokenize

    folder, url = web
    write(folder / "a", noise(1 << 20).tobytes())

    def a():
        return fastmap.memmap(f"{url}/a", "u1", "r")

    token = tokenize(a())
    assert token == tokenize(a()) != tokenize(a()[1:]) and sizeof(a()) < 1000
    write(folder / "a", noise(1 << 20, 1).tobytes())
    assert tokenize(a()) != token


def test_the_example_for_dask_fetches_it_once_for_all_workers(minio, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", minio)
    table = np.arange(50_000 * 100, dtype="f4").reshape(-1, 100)
    stores.put(minio, "dask", "table.f32", table.tobytes())
    example = Path(__file__).parent.parent / "examples/dask_objects.py"
    for _ in range(2):
        done = subprocess.run([sys.executable, example, "s3://dask/table.f32", "100"], capture_output=True, text=True, timeout=120)
        means = table.mean(axis=0, dtype="f8")
        assert done.returncode == 0 and done.stdout == f"50000 rows; mean of each column: {means.min()} to {means.max()}\n", done.stdout + done.stderr
    files = [path for path in (tmp_path / "tier").rglob("*") if path.is_file() and path.stat().st_size == table.nbytes]
    assert len(files) == 1 and files[0].stat().st_blocks * 512 >= table.nbytes, files
