"""A file larger than memory in tasks and actors of Ray: each worker maps the file itself, within a budget of its own.

    pip install fastmap-io ray
    python ray_tasks.py [rows]
"""

import sys

import fastmap
import numpy as np
import ray


@ray.remote
def total(part: fastmap.memmap) -> float:
    return float(part.sum(dtype=np.float64))


@ray.remote
class Rows:
    """An actor keeps its array, and what its cache has of it, from call to call. A task begins with nothing in memory."""

    def __init__(self, table: fastmap.memmap) -> None:
        self.table = table

    def at(self, ids: np.ndarray) -> np.ndarray:
        return fastmap.gather(self.table, ids)


def main(rows: int) -> None:
    table = fastmap.memmap("table.f32", np.float32, "w+", shape=(rows, 128), cache="64MiB")
    for start in range(0, rows, 10_000):
        table[start : start + 10_000] = np.arange(start, min(start + 10_000, rows))[:, None]
    del table  # Written. One process at a time may write a file through a cache; many may read it.

    table = fastmap.memmap("table.f32", np.float32, "r", shape=(rows, 128), cache="64MiB")
    ray.init(num_cpus=2, include_dashboard=False)
    # What travels is the file's name, of each part, too. On several machines they need a file system that all of them see.
    parts = [total.remote(table[start : start + 100_000]) for start in range(0, rows, 100_000)]
    print("sum:", sum(ray.get(parts)))
    actor = Rows.remote(table)
    print("rows 7 and 3:", ray.get(actor.at.remote([7, 3]))[:, 0])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
