"""Steering from within: files that other libraries have mapped."""

import numpy as np
import pytest
from helpers import noise, printed, write

import fastmap

SIZE = 1 << 20


def test_a_thread_steers_what_numpy_has_mapped(tmp_path):
    code = """
        import os, sys, time
        import numpy as np
        import fastmap
        array = np.memmap(sys.argv[1], mode="r")
        before = int(array[::4096].sum())
        fastmap.steer()
        fastmap.steer()
        def count():
            names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
            return names.count("fastmap-steer")
        # A thread names itself.
        while count() == 0:
            time.sleep(0.01)
        print(count(), int(array[::4096].sum()) == before, fastmap.report())
    """
    assert printed(code, write(tmp_path / "a", noise(SIZE, 30).tobytes())) == "1 True None"


@pytest.mark.parametrize("size", ["1MiB", "1M", "1mb", "0.5MiB", SIZE])
def test_sizes_are_as_people_type_them(size):
    assert fastmap.Cache(size).capacity == (SIZE // 2 if size == "0.5MiB" else SIZE)


def test_a_cache_may_be_a_share_of_memory_and_not_more_than_all():
    assert 0 < fastmap.Cache("1%").capacity < fastmap.Cache("2%").capacity
    for size, said in ("much", "is not a size"), ("101%", "1% to 100%"), ("4096TiB", "too large"):
        with pytest.raises((ValueError, OSError), match=said):
            fastmap.Cache(size)


def test_a_url_is_for_reading_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTMAP_TIER", str(tmp_path / "tier"))
    content = noise(SIZE, 31)
    assert (fastmap.memmap(f"file://{write(tmp_path / 'a', content.tobytes())}", np.uint8) == content).all()
