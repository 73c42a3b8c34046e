"""A file larger than memory on a cluster of Dask's: each worker maps the file itself, within a budget of its own.

    pip install fastmap-io "dask[array]" distributed
    python dask_cluster.py [rows]
"""

import sys

import dask.array
import fastmap
import numpy as np
from distributed import Client, LocalCluster


def main(rows: int) -> None:
    table = fastmap.memmap("table.f32", np.float32, "w+", shape=(rows, 128), cache="64MiB")
    for start in range(0, rows, 10_000):
        table[start : start + 10_000] = np.arange(start, min(start + 10_000, rows))[:, None]
    del table  # Written. One process at a time may write a file through a cache; many may read it.

    table = fastmap.memmap("table.f32", np.float32, "r", shape=(rows, 128), cache="64MiB")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        # What travels is the file's name. On several machines they need a file system that all of them see.
        lazy = dask.array.from_array(table, chunks=(10_000, 128))
        mean = lazy.mean(axis=0, dtype=np.float64).compute()
    print(f"mean of each column: {mean.min()} to {mean.max()}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
