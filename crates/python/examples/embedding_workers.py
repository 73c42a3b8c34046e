"""A table of embeddings larger than memory in the workers of PyTorch's DataLoader: rows in random order, through numpy.memmap, steered.

    pip install fastmap-io torch
    python embedding_workers.py [rows]
"""

import sys
from functools import cached_property

import fastmap
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Embeddings(Dataset):
    def __init__(self, name: str, rows: int) -> None:
        self.name, self.rows = name, rows

    @cached_property
    def table(self) -> np.memmap:
        # Mapped by each worker. An array that is sent to it would be a copy of the whole file.
        return np.memmap(self.name, np.float32, "r", shape=(self.rows, 128))

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(ids), torch.from_numpy(self.table[ids])


def begin(worker: int) -> None:
    # In each of them: the thread that steers is not in a child made by fork.
    fastmap.steer()


def main(rows: int) -> None:
    with open("table.f32", "wb") as file:
        for start in range(0, rows, 10_000):
            np.repeat(np.arange(start, min(start + 10_000, rows), dtype=np.float32), 128).tofile(file)

    embeddings = Embeddings("table.f32", rows)
    order = BatchSampler(RandomSampler(embeddings), batch_size=256, drop_last=False)
    total = 0.0
    for ids, vectors in DataLoader(embeddings, sampler=order, batch_size=None, num_workers=2, worker_init_fn=begin):
        assert (vectors == ids[:, None]).all()
        total += vectors.sum(dtype=torch.float64).item()
    print(f"sum of {rows} vectors: {total}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
