"""What programs do with numpy.memmap, over 48 MiB, checked against the same in memory."""
import mmap
import os

import numpy as np

chance = np.random.default_rng(2)
rows, columns = 6144, 1024
shadow = chance.random((rows, columns))


def same(array, what):
    assert np.array_equal(array, shadow), what
    print(what, array.sum(), array[::-1, ::3].sum())


written = np.memmap("a.f8", dtype="f8", mode="w+", shape=shadow.shape)
assert not written[1000].any()
written[:] = shadow
same(written, "w+")
at, by = chance.integers(0, shadow.size, 4000), chance.random(4000)
for array in written, shadow:
    array.reshape(-1)[at] = by  # scattered
    array[:, 7] *= 2  # a column: a store to every second page
    array[100:200] = array[300:400]  # from one place of the mapping to another
written.flush()
same(np.fromfile("a.f8", dtype="f8").reshape(shadow.shape), "read beside the mapping")

# Mapped again while it is mapped, at an offset inside a page.
part = np.memmap("a.f8", dtype="f8", mode="r+", offset=8 * columns * 5 + 16, shape=(4000, 100))
part += 1
shadow.reshape(-1)[columns * 5 + 2 :][: part.size] += 1
del part
same(written, "r+ at an offset")

written.tofile("b.f8")  # the C library writes from the mapping
np.save("c.npy", written)
with open("d.f8", "wb", buffering=0) as out:
    assert out.write(written[1000:3000]) == 2000 * columns * 8
with open("d.f8", "rb", buffering=0) as back:
    assert back.readinto(written[3000:5000]) == 2000 * columns * 8  # and into it
shadow[3000:5000] = shadow[1000:3000]
same(written, "read(2) into the mapping")
del written

copied = np.memmap("a.f8", dtype="f8", mode="c", shape=shadow.shape)  # private
copied[:10] = 0
del copied
same(np.memmap("a.f8", dtype="f8", mode="r", shape=shadow.shape), "r")
loaded = np.load("c.npy", mmap_mode="r+")
loaded[loaded > 0.5] = 0  # one pass, stores to all pages
print("c.npy", loaded.sum(), np.sort(loaded[:, 9])[-5:], loaded.mean(axis=0)[:3])
loaded.flush()
del loaded

with open("a.f8", "r+b") as file:
    old = os.path.getsize("a.f8")
    grown = mmap.mmap(file.fileno(), 0)
    grown[old - 8 : old] = b"the last"
    grown.resize(old + (9 << 20))
    assert grown[old - 8 : old] == b"the last" and not any(grown[old : old + 5000])
    grown[-5000:] = b"x" * 5000
    file.seek(old + 100)
    file.write(b"written")
    file.flush()
    assert grown[old + 100 : old + 107] == b"written"
    assert grown.find(b"written", old - 100) == old + 100
    grown.resize(old + 4097)
    grown.flush()
    grown.close()
print(os.path.getsize("a.f8"))
