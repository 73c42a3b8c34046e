"""numpy.memmap: a sum from front to back, 1 MiB at a time. Operations are pages of 4 KiB."""

import numpy
import program

STEP = 1 << 17


def make(data, bytes):
    with open(f"{data}/all.i8", "wb") as file:
        for first in range(0, bytes // 8 // STEP * STEP, STEP):
            (numpy.arange(first, first + STEP) * 2654435761 % 1000003).tofile(file)


def begin(data):
    numbers = numpy.memmap(f"{data}/all.i8", dtype="i8", mode="r")
    count = len(numbers) // STEP

    def batch(number):
        first = number % count * STEP
        return STEP * 8 // 4096, int(numbers[first : first + STEP].sum())

    return batch


program.main(make, begin)
