"""Python's own mmap: slices of 256 bytes at random, each summed up."""

import mmap
import os
import zlib

import program

ROW = 256
ROWS = 64
STEP = 1 << 20


def make(data, bytes):
    with open(f"{data}/rows", "wb") as file:
        block = bytearray(STEP)
        for at in range(0, bytes // STEP * STEP, STEP):
            for place in range(0, STEP, 4096):
                stamp = ((at + place) * 0x9E3779B97F4A7C15 & (1 << 64) - 1).to_bytes(8, "little")
                block[place : place + 4096] = stamp * 512
            file.write(block)


def begin(data):
    file = os.open(f"{data}/rows", os.O_RDONLY)
    rows = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    count = len(rows) // ROW

    def batch(number):
        total = 0
        for turn in range(number * ROWS, number * ROWS + ROWS):
            at = program.scattered(turn, count) * ROW
            total = zlib.crc32(rows[at : at + ROW], total)
        return ROWS, total

    return batch


program.main(make, begin)
