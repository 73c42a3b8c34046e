"""SQLite reading through maps (PRAGMA mmap_size): rows of 960 bytes by their number, at random."""

import sqlite3
import zlib

import program

ROWS = 64
TO_A_PAGE = 4


def make(data, bytes):
    rows = bytes // 4096 * TO_A_PAGE
    db = sqlite3.connect(f"{data}/rows.db", isolation_level=None)
    for pragma in ("page_size=4096", "journal_mode=off", "synchronous=off"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, value BLOB)")
    every = f"WITH RECURSIVE every(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM every WHERE n + 1 < {rows})"
    db.execute(f"{every} INSERT INTO rows SELECT n, randomblob(960) FROM every")
    db.close()


def begin(data):
    db = sqlite3.connect(f"file:{data}/rows.db?mode=ro", uri=True, isolation_level=None)
    db.execute(f"PRAGMA mmap_size={1 << 40}")
    count = db.execute("SELECT max(number) + 1 FROM rows").fetchone()[0]

    def batch(number):
        total = 0
        for turn in range(number * ROWS, number * ROWS + ROWS):
            row = db.execute("SELECT value FROM rows WHERE number = ?", (program.scattered(turn, count),))
            total = zlib.crc32(row.fetchone()[0], total)
        return ROWS, total

    return batch


program.main(make, begin)
