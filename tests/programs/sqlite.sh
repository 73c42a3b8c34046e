# SQLite reading through mmap_size: a database that grows and shrinks while it is mapped and is written with pwrite(2), by
# two connections of one process that see each other's work, with a rollback journal and with a write-ahead log.
# integrity_check and a dump by a plain sqlite3 have the last word.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(sqlite3)
packages=(sqlite3)

work() {
    local journal
    for journal in delete wal; do
        serve 24 --map '*.db'
        under "$(real_python)" "$here/sqlite_updates.py" $journal $journal.db
        sqlite3 $journal.db 'PRAGMA integrity_check'
        sqlite3 $journal.db .dump | digest
    done
}
