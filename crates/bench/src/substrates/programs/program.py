"""What each program in Python is, but for its data: as program.h says."""

import sys
import time


def main(make, begin):
    """`make(data, bytes)`; `begin(data)` gives a generator, each of whose steps passes over a part of the data, and a function that
    does the n-th batch and returns how many operations it was, and its sum."""
    if len(sys.argv) == 4 and sys.argv[1] == "make":
        return make(sys.argv[2], int(sys.argv[3]))
    if len(sys.argv) != 5 or sys.argv[1] != "run":
        sys.exit("usage: make DATA BYTES | run DATA SECONDS PASS")
    steps, batch = begin(sys.argv[2])
    seconds, most = float(sys.argv[3]), float(sys.argv[4])
    until = time.monotonic() + most
    while time.monotonic() < until and next(steps, None) is not None:
        pass
    print("begin", flush=True)
    ops, sums = 0, []
    start = time.monotonic()
    while True:
        count, total = batch(len(sums))
        ops += count
        sums.append(f"{total & (1 << 64) - 1:x}")
        end = time.monotonic()
        if end - start >= seconds:
            break
    print("end", ops, f"{end - start:.9f}", *sums)


def scattered(number, among):
    """A place among so many, far from that of the next number."""
    return (number * 0x9E3779B97F4A7C15 >> 16 & (1 << 44) - 1) % among
