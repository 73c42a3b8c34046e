# SQLite reading through mmap_size: a database that grows and shrinks while it is mapped and is written with pwrite(2), by
# one connection and by two of one process that see each other's work, with a rollback journal and with a write-ahead log.
# integrity_check and a dump by a plain sqlite3 have the last word.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(sqlite3)
packages=(sqlite3)

work() {
    local journal connections
    for journal in delete wal; do
        for connections in 1 2; do
            serve 24 --map '*.db'
            returns $((connections - 1)) # two connections map the same bytes twice
            under "$(real_python)" "$here/sqlite_updates.py" $journal $connections $journal$connections.db
            sqlite3 $journal$connections.db 'PRAGMA integrity_check'
            sqlite3 $journal$connections.db .dump | digest
        done
    done
}
