"""Tables with indexes, built and changed by one or two connections to one SQLite database that read it through mmap(2)."""
import random
import sqlite3
import sys

journal, connections, path = sys.argv[1:]
first = sqlite3.connect(path)
second = sqlite3.connect(path) if connections == "2" else first
for connection in first, second:
    # Few pages of its own: what it reads, it reads from the mapping.
    assert connection.execute("PRAGMA mmap_size=1073741824").fetchone() == (1073741824,)
    connection.execute("PRAGMA cache_size=32")
assert first.execute(f"PRAGMA journal_mode={journal}").fetchone() == (journal,)
first.executescript(
    "CREATE TABLE items(id INTEGER PRIMARY KEY, name TEXT, body BLOB); CREATE INDEX names ON items(name);"
    "CREATE TABLE log(item INTEGER, note TEXT); CREATE INDEX notes ON log(note, item);"
)
chance = random.Random(3)


def sums(connection):
    return connection.execute("SELECT count(*), sum(id), sum(length(body)), max(name) FROM items").fetchone()


for round in range(4):
    with first:
        for _ in range(6000):
            key = chance.randrange(10**9)
            first.execute("INSERT INTO items(name, body) VALUES (?, ?)", (f"n{key}", chance.randbytes(1000)))
    with second:  # sees what the other wrote, and changes it
        rows = second.execute("SELECT max(id) FROM items").fetchone()[0]
        for _ in range(400):
            key = chance.randrange(rows)
            second.execute("UPDATE items SET name = name || 'x', body = ? WHERE id = ?", (chance.randbytes(1500), key))
            second.execute("INSERT INTO log VALUES (?, ?)", (key, f"round {round}"))
        second.execute("DELETE FROM items WHERE id % 17 = ?", (round,))
    assert sums(first) == sums(second)
    print(sums(first))
    try:
        with first:
            first.execute("UPDATE items SET body = zeroblob(2000) WHERE id % 9 = 1")
            raise KeyboardInterrupt  # a transaction that is rolled back, its pages already written
    except KeyboardInterrupt:
        pass
    assert sums(first) == sums(second)
print(first.execute("PRAGMA integrity_check").fetchall())
with first:
    first.execute("DELETE FROM items WHERE id > 9000")
first.execute("VACUUM")  # the file shrinks, and the other connection has it mapped
print(sums(second), second.execute("PRAGMA integrity_check").fetchall())
second.close()
first.close()
