"""A file that is mapped and read once, from its first byte to its last. Operations are bytes."""

import mmap
import sys
import zlib

import program

STEP = 1 << 20


def make(data, bytes):
    sys.exit("its data are made by the storage that it is loaded from")


def begin(data):
    with open(f"{data}/data", "rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def batch(number):
        piece = whole[number * STEP : number * STEP + STEP]
        return (len(piece), zlib.adler32(piece)) if piece else None

    return batch


program.main(make, begin)
