"""LMDB from Python: gets of values of 1000 bytes at random, 64 to a transaction."""

import random
import struct
import zlib

import lmdb
import program

GETS = 64
PUTS = 10000
TO_A_PAGE = 4


def make(data, bytes):
    records = bytes // 4096 * TO_A_PAGE
    chance = random.Random(7)
    with lmdb.open(data, map_size=1 << 40, sync=False) as env:
        for first in range(0, records, PUTS):
            with env.begin(write=True) as txn:
                for key in range(first, min(first + PUTS, records)):
                    txn.put(struct.pack(">Q", key), chance.randbytes(1000), append=True)


def begin(data):
    env = lmdb.open(data, readonly=True, map_size=1 << 40, readahead=True)
    records = env.stat()["entries"]

    def batch(number):
        total = 0
        with env.begin(buffers=True) as txn:
            for turn in range(number * GETS, number * GETS + GETS):
                total = zlib.crc32(bytes(txn.get(struct.pack(">Q", program.scattered(turn, records)))), total)
        return GETS, total

    return batch


program.main(make, begin)
