"""A table of Hugging Face's datasets, larger than memory, in random order: its Arrow file is mapped by pyarrow, and steered.

    pip install fastmap-io datasets
    python datasets_shuffled.py [rows]
"""

import sys

import fastmap
import numpy as np
import pyarrow as pa
from datasets import Dataset


def main(rows: int) -> None:
    schema = pa.schema({"id": pa.int64(), "vector": pa.list_(pa.float32(), 128)})
    with pa.ipc.new_stream("table.arrow", schema) as file:
        for start in range(0, rows, 10_000):
            ids = np.arange(start, min(start + 10_000, rows))
            vectors = pa.FixedSizeListArray.from_arrays(np.repeat(ids, 128).astype(np.float32), 128)
            file.write_batch(pa.record_batch([pa.array(ids), vectors], schema))

    fastmap.steer()
    table = Dataset.from_file("table.arrow").shuffle(seed=1).with_format("numpy")
    total = 0.0
    for batch in table.iter(batch_size=1000):
        assert (batch["vector"] == batch["id"][:, None]).all()
        total += batch["vector"].sum(dtype=np.float64)
    print(f"sum of {rows} vectors: {total}")
    print("steering:", fastmap.report() or "nothing to do")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
