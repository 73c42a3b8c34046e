# LMDB in a program with threads: readers follow values straight in the mapping, check them, and hand them to write(2), while
# a writer commits new versions; by write(2), by stores into the mapping (writemap), and with asynchronous msync(2). The map
# grows on the way. A plain process reads everything afterwards.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(mdb_dump)
packages=(lmdb-utils)
pypi=(lmdb)

work() {
    local mode
    for mode in file writemap async; do
        serve 24 --map '*/data.mdb'
        under "$PYTHON" "$here/lmdb_threads.py" $mode $mode.d
        mdb_dump $mode.d | digest
    done
}
