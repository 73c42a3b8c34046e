"""A table of rows of 64 KiB, which is read column by column: by numpy.memmap, or by Python's own mmap if there is no numpy. Each column has
pages of its own. Operations are rows."""

import mmap
import struct

import program

try:
    import numpy
except ImportError:
    numpy = None

NUMBERS = 8192
IN_A_PAGE = 512
ROWS = 64


def make(data, bytes):
    program.fill(f"{data}/table.i8", bytes)


def begin(data):
    path = f"{data}/table.i8"
    if numpy:
        table = numpy.memmap(path, dtype="<i8", mode="r").reshape(-1, NUMBERS)
        rows = len(table)
    else:
        with open(path, "rb") as file:
            table = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        rows = len(table) // 8 // NUMBERS

    def batch(number):
        passes, step = divmod(number, rows // ROWS)
        column, some = passes * IN_A_PAGE % NUMBERS, range(step * ROWS, step * ROWS + ROWS)
        if numpy:
            return ROWS, int(table[some.start : some.stop, column].sum())
        return ROWS, sum(struct.unpack_from("<q", table, (row * NUMBERS + column) * 8)[0] for row in some)

    return batch


program.main(make, begin)
