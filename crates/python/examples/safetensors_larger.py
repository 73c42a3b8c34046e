"""Weights larger than memory, layer by layer, again and again: the file is mapped by safetensors as it is, and steered.

    pip install fastmap-io safetensors
    systemd-run --user --scope -p MemoryMax=1G python safetensors_larger.py [layers]

A layer has 16 MiB. The second walk needs first what was evicted first.
"""

import json
import sys

import fastmap
import numpy as np
from safetensors import safe_open

SHAPE = (2048, 2048)
BYTES = 4 * 2048 * 2048


def write(name: str, layers: int) -> None:
    """One layer at a time; safetensors' own save_file takes all of them at once."""
    tensors = {f"layer.{i:04}": {"dtype": "F32", "shape": SHAPE, "data_offsets": [i * BYTES, (i + 1) * BYTES]} for i in range(layers)}
    header = json.dumps(tensors).encode()
    with open(name, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for i in range(layers):
            np.full(SHAPE, i, np.float32).tofile(file)


def main(layers: int) -> None:
    write("model.safetensors", layers)
    fastmap.steer()
    with safe_open("model.safetensors", framework="numpy") as model:
        for walk in "first", "second":
            total = sum(float(model.get_tensor(name).mean(dtype=np.float64)) for name in model.offset_keys())
            print(f"{walk} walk, sum of means: {total}")
    print("steering:", fastmap.report() or "nothing to do")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
