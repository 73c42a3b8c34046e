"""An array in an object store on a cluster of Dask's: each worker maps it, fetches the parts that it works on, and keeps them on its disk.

    pip install fastmap-io "dask[array]" distributed
    python dask_objects.py s3://bucket/table.f32 [columns]

Endpoint, region and credentials are those of the environment, as for AWS's own tools.
"""

import sys

import dask.array
import fastmap
import numpy as np
from distributed import Client, LocalCluster


def main(url: str, columns: int) -> None:
    # A few requests find how long it is. What workers fetch is kept in ~/.cache/fastmap of their machines (FASTMAP_TIER names another folder).
    table = fastmap.memmap(url, np.float32, "r", cache="64MiB").reshape(-1, columns)
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster, Client(cluster):
        # What travels is the URL, and which version of the object it is: if it changes meanwhile the workers fail, and mix nothing.
        rows = max((8 << 20) // (4 * columns), 1)
        lazy = dask.array.from_array(table, chunks=(rows, columns))
        mean = lazy.mean(axis=0, dtype=np.float64).compute()
    print(f"{len(table)} rows; mean of each column: {mean.min()} to {mean.max()}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 128)
