"""Names and coordinates for a file larger than memory: xarray over a mapped array, as it is or in chunks of Dask's.

    pip install fastmap-io "xarray>=2025.6" "dask[array]"
    python xarray_table.py [days]
"""

import sys

import fastmap
import numpy as np
import xarray


def main(days: int) -> None:
    values = fastmap.memmap("days.f32", np.float32, "w+", shape=(days, 24, 100), cache="64MiB")
    for day in range(days):
        values[day] = day
    values.flush()

    dates = np.datetime64("2000-01-01", "D") + np.arange(days)
    data = xarray.DataArray(values, dims=("day", "hour", "station"), coords={"day": dates})
    # It is not copied: a selection reads its own pages.
    print("a day:", float(data.sel(day="2000-01-03").mean()))
    # In chunks it is computed part by part, by several threads.
    print("all of them:", float(data.chunk(day=100).mean(dtype=np.float64).compute()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
