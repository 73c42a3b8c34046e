"""Puts 20,000 values of about 1.2 KB into a memcached, from two connections, or looks whether all are still there."""
import hashlib
import random
import socket
import sys
import threading
import time

path, task = sys.argv[1:]
KEYS = 20000


def connect():
    for _ in range(200):  # it may still be starting
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return connection.makefile("rwb")
        except OSError:
            connection.close()
            time.sleep(0.05)
    sys.exit("memcached does not answer")


def value(key, version):
    return (b"%d.%d." % (key, version) * 200)[: 1000 + key * 7 % 400]


def put(connection, keys, version):
    for start in range(0, len(keys), 64):
        some = keys[start : start + 64]
        for key in some:
            data = value(key, version)
            connection.write(b"set key%d 0 0 %d\r\n%s\r\n" % (key, len(data), data))
        connection.flush()
        for key in some:
            answer = connection.readline()
            assert answer == b"STORED\r\n", (key, answer)


def get(connection, keys):
    for start in range(0, len(keys), 64):
        some = keys[start : start + 64]
        connection.write(b"get " + b" ".join(b"key%d" % key for key in some) + b"\r\n")
        connection.flush()
        for key in some:
            line = connection.readline().split()
            assert line[:2] == [b"VALUE", b"key%d" % key], (key, line)
            yield key, connection.read(int(line[3]))
            connection.readline()
        assert connection.readline() == b"END\r\n"


failures = []


def client(number, connection):
    """Half of the keys: written in order, half of these read at random, half written again."""
    try:
        chance = random.Random(number)
        keys = list(range(number, KEYS, 2))
        put(connection, keys, 0)
        chance.shuffle(keys)
        for key, found in get(connection, keys[: len(keys) // 2]):
            assert found == value(key, 0), key
        put(connection, sorted(keys, key=lambda key: key % 4 != number)[: len(keys) // 2], 1)
    except BaseException as failure:
        failures.append(failure)
        raise


if task == "fill":
    threads = [threading.Thread(target=client, args=(number, connect())) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
total, again = hashlib.sha256(), 0
for key, found in get(connect(), list(range(KEYS))):
    assert found in (value(key, 0), value(key, 1)), key
    again += found == value(key, 1)
    total.update(found)
print(task, KEYS, "values,", again, "of them written twice", total.hexdigest())
sys.exit(1 if failures else 0)
