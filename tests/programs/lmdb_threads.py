"""Versions of 6000 values of 4 KB, written by one thread in an LMDB environment and checked by three others meanwhile."""
import hashlib
import os
import random
import sys
import threading
import zlib

import lmdb

mode, path = sys.argv[1:]
KEYS, ROUNDS = 6000, 6


def value(key, version):
    body = b"%d.%d." % (key, version) * (3000 // len(b"%d.%d." % (key, version)) + key % 700)
    body = body[: 2900 + key % 1000]
    return zlib.crc32(body).to_bytes(4, "big") + body


# Each version that a slow reader still looks at takes room.
environment = lmdb.open(
    path, map_size=80 << 20, writemap=mode != "file", map_async=mode == "async", subdir=True, max_readers=16
)
done = threading.Event()
wrong, checked = [], [0] * 3


def read(number):
    chance = random.Random(number)
    with open(f"{path}.out{number}", "w+b", buffering=0) as out:
        while not done.is_set():
            with environment.begin(buffers=True) as transaction:
                for _ in range(200):
                    key = chance.randrange(KEYS)
                    found = transaction.get(b"%06d" % key)
                    if found is None:
                        continue
                    sum, owner = int.from_bytes(found[:4], "big"), bytes(found[4:20]).split(b".")[0]
                    if zlib.crc32(found[4:]) != sum or owner != b"%d" % key:
                        wrong.append(key)
                    if checked[number] % 50 == 0:  # the kernel reads the mapping
                        os.pwrite(out.fileno(), found, 0)
                        if os.pread(out.fileno(), len(found), 0) != bytes(found):
                            wrong.append(-key)
                    checked[number] += 1


readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
chance = random.Random(11)
versions = {}


def write(transaction, key, version):
    versions[key] = version
    transaction.put(b"%06d" % key, value(key, version))


try:
    for version in range(ROUNDS):
        if version == 1:
            for reader in readers:
                reader.start()
        keys = list(range(KEYS)) if version == 0 else chance.sample(range(KEYS), 1000)
        for start in range(0, len(keys), 500):
            with environment.begin(write=True) as transaction:
                for key in keys[start : start + 500]:
                    write(transaction, key, version)
finally:
    done.set()
for reader in readers:
    reader.join()

environment.set_mapsize(128 << 20)  # nobody reads now, as LMDB demands
with environment.begin(write=True) as transaction:
    for key in range(0, KEYS, 3):
        transaction.delete(b"%06d" % key)
    for key in range(1, KEYS, 3):
        write(transaction, key, ROUNDS)
environment.sync(True)

total = hashlib.sha256()
with environment.begin(buffers=True) as transaction:
    for key, found in transaction.cursor():
        if found != value(int(bytes(key)), versions[int(bytes(key))]):
            wrong.append(int(bytes(key)))
        total.update(found)
    print(transaction.stat()["entries"], "values", total.hexdigest())
environment.close()
if wrong or not all(checked):
    sys.exit(f"{len(wrong)} wrong values, of keys {wrong[:8]}; checked while writing: {checked}")
