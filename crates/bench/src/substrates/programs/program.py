"""What each program in Python is, but for its data: as program.h says."""

import os
import select
import sys
import time

TELL = 0.25


def main(make, begin):
    """`make(data, bytes)`; `begin(data)` gives a function that does the n-th batch and returns how many operations it was, and its
    sum; nothing where all is done."""
    if len(sys.argv) == 4 and sys.argv[1] == "make":
        return make(sys.argv[2], int(sys.argv[3]))
    warm = sys.argv[4:] == ["warm"]
    if len(sys.argv) != 4 + warm or sys.argv[1] != "run":
        sys.exit("usage: make DATA BYTES | run DATA SECONDS [warm]")
    batch = begin(sys.argv[2])
    sums = []

    def work(seconds):
        """For so long; if that is nothing until standard input has something to say."""
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
    """A place among so many, far from that of the next number."""
    return (number * 0x9E3779B97F4A7C15 >> 16 & (1 << 44) - 1) % among


def fill(path, bytes, before=b""):
    """A file of noise."""
    with open(path, "wb") as file:
        file.write(before)
        for _ in range(bytes >> 20):
            file.write(os.urandom(1 << 20))
