"""The common part of all programs in Python. Their commands and output are those of program.h."""

import os
import select
import sys
import time

TELL = 0.25


def main(make, begin):
    """Runs the command line. `make(data, bytes)` makes the data. `begin(data)` returns a function, which makes the n-th batch and returns
    its operations and its sum, or nothing if all work is done."""
    if len(sys.argv) == 4 and sys.argv[1] == "make":
        return make(sys.argv[2], int(sys.argv[3]))
    warm = sys.argv[4:] == ["warm"]
    if len(sys.argv) != 4 + warm or sys.argv[1] != "run":
        sys.exit("usage: make DATA BYTES | run DATA SECONDS [warm]")
    batch = begin(sys.argv[2])
    sums = []

    def work(seconds):
        """Works for so many seconds. If that is 0, works until something can be read from standard input."""
        ops, start, told = 0, time.monotonic(), 0
        while True:
            done = batch(len(sums))
            took = time.monotonic() - start
            if done:
                ops += done[0]
                sums.append(f"{done[1] & (1 << 64) - 1:x}")
            if not done or (took >= seconds if seconds else select.select([sys.stdin], [], [], 0)[0]):
                return f"{ops} {took:.9f}"
            if took - told >= TELL:
                print("at", ops, f"{took:.3f}", flush=True)
                told = took

    seconds = float(sys.argv[3])
    if warm:
        print("start", flush=True)
        print("cold", work(seconds), flush=True)
        work(0)
    print("begin", flush=True)
    print("end", work(seconds), *sums)


def scattered(number, among):
    """A place among so many for a number. The places of neighbouring numbers are far apart."""
    return (number * 0x9E3779B97F4A7C15 >> 16 & (1 << 44) - 1) % among


def fill(path, bytes, before=b""):
    """Makes a file of random bytes."""
    with open(path, "wb") as file:
        file.write(before)
        for _ in range(bytes >> 20):
            file.write(os.urandom(1 << 20))
