# numpy.memmap in its modes r, r+, w+ and c: sums, slices, scattered updates, offsets, arrays saved to files straight from
# the mapping, and Python's mmap grown in place. A plain process sums up what is in the files.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(python3)
pypi=(numpy)

work() {
    serve 48 --map '*.f8' --map '*.npy'
    returns 1 # a part of `a.f8` is mapped once more while all of it is
    watched "$PYTHON" "$here/numpy_arrays.py"
    digest ./*.f8 ./*.npy
}
