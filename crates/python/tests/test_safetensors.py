"""`fastmap.safetensors` beside the package of that name, on files of its own and on hostile ones."""

import gc
import json
import os
import struct
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from helpers import SMALLEST, noise, printed, refusal, write
from hypothesis import given, settings
from hypothesis import strategies as st

import fastmap

# Of numpy's types those that the package writes.
NUMPYS = "? u1 i1 u2 i2 u4 i4 u8 i8 f2 f4 f8 c8".split()


def file_of(path, header, data=b"", length=None):
    """A file with a header (as it is, or an object) and bytes of tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return write(path, struct.pack("<Q", len(text) if length is None else length) + text + data)


def tensor(dtype="F32", shape=(1,), begin=0, end=4):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def equal(ours, theirs):
    assert list(sorted(ours)) == list(sorted(theirs))
    for name in theirs:
        a, b = ours[name], theirs[name]
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        assert a.tobytes() == b.tobytes(), name


# Files that are right.


@pytest.mark.parametrize("cache", [None, SMALLEST, "1MiB"])
def test_tensors_are_those_that_the_package_writes_and_reads(tmp_path, cache):
    tensors = {f"t.{kind}": (noise(1200, 1) & 1 if kind == "?" else noise(1200, 1)).view(kind).reshape(2, 3, -1) for kind in NUMPYS}
    tensors |= {"scalar": np.array(5, "f4"), "nothing": np.zeros((3, 0, 2), "i8"), "": np.arange(3), "größe \0\n\"": np.ones(1)}
    tensors["large"] = noise(1 << 20, 2).reshape(1024, 1024)
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, path, {"format": "np", "ключ": "значение"})
    weights = fastmap.safetensors(path, cache=cache)
    equal(weights, safetensors.numpy.load_file(path))
    equal(weights, tensors)
    assert weights.metadata == {"format": "np", "ключ": "значение"}
    assert weights.mapping.engine == ("kernel" if cache is None else "fastmap")
    assert len(weights) == len(tensors) and "t.f2" in weights and "missing" not in weights
    assert weights.dtypes["t.f2"] == "F16" and weights.dtypes["t.?"] == "BOOL"
    assert repr(weights) == f"<fastmap.SafeTensors: {len(tensors)} tensors, {len(weights.mapping)} bytes>"
    with pytest.raises(KeyError):
        weights["missing"]


@pytest.mark.parametrize("name, kind", [("BF16", "<u2"), ("F8_E4M3", "u1"), ("F8_E5M2", "u1"), ("F8_E8M0", "u1")])
def test_types_that_numpy_lacks_are_bits(tmp_path, name, kind):
    data = noise(24, 3).tobytes()
    path = file_of(tmp_path / "a", {"a": tensor(name, (24 // np.dtype(kind).itemsize,), 0, 24)}, data)
    assert dict(safetensors.deserialize(path.read_bytes()))["a"]["dtype"] == name
    weights = fastmap.safetensors(path)
    assert (weights["a"].dtype, weights["a"].tobytes(), weights.dtypes["a"]) == (np.dtype(kind), data, name)


def test_tensors_are_views_for_reading_that_keep_the_file_mapped(tmp_path):
    data = noise(400_000, 4)
    path = file_of(tmp_path / "a", {"a": tensor("U8", (400, 1000), 0, 400_000)}, data.tobytes())
    weights = fastmap.safetensors(path, cache=SMALLEST)
    mapping, a = weights.mapping, weights["a"][5:]
    assert not a.flags.writeable and not a.flags.owndata
    os.unlink(path)
    del weights
    gc.collect()
    with pytest.raises(BufferError):
        mapping.close()
    rows = np.arange(394, -1, -1)
    before = mapping.stats()["prefetched_pages"]
    assert (fastmap.gather(a, rows) == data.reshape(400, 1000)[5:][rows]).all()
    assert mapping.stats()["prefetched_pages"] > before
    assert mapping.stats()["resident_pages"] <= 16
    del a
    gc.collect()
    mapping.close()


def test_several_files_share_a_cache_and_any_name_of_a_file_is_taken(tmp_path):
    cache = fastmap.Cache(SMALLEST)
    path = file_of(tmp_path / "a", {"a": tensor()}, struct.pack("<f", 7))
    for name in path, str(path), os.fsencode(path), Path(path):
        weights = fastmap.safetensors(name, cache=cache)
        assert weights["a"].tolist() == [7] and weights.mapping.cache is cache
    for wrong in None, 5, open(path, "rb"):
        assert isinstance(refusal(lambda: fastmap.safetensors(wrong)), TypeError)
    with pytest.raises(FileNotFoundError):
        fastmap.safetensors(tmp_path / "missing")
    with pytest.raises(ValueError):
        fastmap.safetensors(path, cache="1KiB")


def test_a_file_with_no_bytes_of_tensors_is_read_as_the_package_does(tmp_path):
    for tensors in {}, {"a": np.zeros((0, 3), "f4")}, {"a": np.zeros(0, "u1"), "b": np.zeros((2, 0), "f8")}:
        safetensors.numpy.save_file(tensors, tmp_path / "a")
        equal(safetensors.numpy.load_file(tmp_path / "a"), tensors)
        for cache in None, SMALLEST:
            equal(fastmap.safetensors(tmp_path / "a", cache=cache), tensors)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_any_tensors_come_back(tmp_path_factory, data):
    shapes = st.lists(st.integers(0, 7), max_size=4)
    names = st.text(max_size=8).filter(lambda name: name != "__metadata__" and not any(0xD800 <= ord(c) < 0xE000 for c in name))
    kinds = data.draw(st.dictionaries(names, st.tuples(st.sampled_from(NUMPYS), shapes), min_size=1, max_size=6))
    tensors = {}
    for number, (name, (kind, shape)) in enumerate(kinds.items()):
        content = noise(int(np.prod(shape)) * np.dtype(kind).itemsize, number)
        tensors[name] = (content & 1 if kind == "?" else content).view(kind).reshape(shape)
    tensors["one"] = np.ones(1)
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    safetensors.numpy.save_file(tensors, path)
    equal(fastmap.safetensors(path), tensors)


THEIRS = """
    import hashlib, sys
    import safetensors, safetensors.numpy
    weights = safetensors.numpy.load_file(sys.argv[1])
    with safetensors.safe_open(sys.argv[1], "numpy") as file:
        for _ in range(3):
            for name in file.keys():
                part, half = file.get_tensor(name), file.get_slice(name)[10:20]
                assert (part == weights[name]).all() and (half == part[10:20]).all()
                print(name, hashlib.sha256(part.tobytes()).hexdigest())
"""


def test_the_package_reads_the_same_under_the_command(tmp_path):
    tensors = {f"layer.{number}": noise(1 << 20, number).reshape(1024, 1024) for number in range(8)}
    path, script = tmp_path / "a", tmp_path / "script.py"
    safetensors.numpy.save_file(tensors, path)
    script.write_text(textwrap.dedent(THEIRS))
    run = ["-m", "fastmap", "run"]
    here, *under = (
        subprocess.run([sys.executable, *before, script, path], capture_output=True, text=True, timeout=60, check=True).stdout
        for before in ([], run, [*run, "--cache", "1MiB"])
    )
    assert under == [here, here] and len(here.splitlines()) == 24


# Files that are wrong.

A = tensor()
WRONG = {
    "no file": (b"", None),
    "short": (b"\0" * 7, None),
    "length of 0": (struct.pack("<Q", 0), None),
    "length past the end": (struct.pack("<Q", 3) + b"{}", None),
    "length of 2**63": (struct.pack("<Q", 1 << 63) + b"{}" * 9, None),
    "length of 2**64 - 1": (b"\xff" * 8 + b"{}" * 9, None),
    "length of 2**64 - 8": (struct.pack("<Q", (1 << 64) - 8) + b"{}" * 9, None),
    "length above the limit": (struct.pack("<Q", 100_000_001) + b"{}" * 9, None),
    "not UTF-8": (b'{"a\xff": 1}', b"1234"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), b"1234"),
    "a byte order mark": (b"\xef\xbb\xbf" + json.dumps({"a": A}).encode(), b"1234"),
    "no JSON": (b"{", b"1234"),
    "nothing but spaces": (b"   ", b"1234"),
    "two objects": (json.dumps({"a": A}).encode() * 2, b"1234"),
    "a list": (b"[]", b"1234"),
    "a number": (b"1", b"1234"),
    "null": (b"null", b"1234"),
    "NaN": (b"NaN", b"1234"),
    "deep nesting": (b"[" * 200_000, b"1234"),
    "deep nesting of objects": (b'{"a":' * 200_000, b"1234"),
    "deep nesting that ends": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"1234"),
    "a name twice": (b'{"a":%s,"a":%s}' % ((json.dumps(A).encode(),) * 2), b"1234"),
    "a name twice, spelt in two ways": (b'{"a":%s,"\\u0061":%s}' % ((json.dumps(A).encode(),) * 2), b"1234"),
    "a key twice": (b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{},"a":%s}' % json.dumps(A).encode(), b"1234"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, "a": A}, b"1234"),
    "metadata in a list": ({"__metadata__": ["a"], "a": A}, b"1234"),
    "metadata in metadata": ({"__metadata__": {"a": {}}, "a": A}, b"1234"),
    "a tensor that is a list": ({"a": []}, b"1234"),
    "a tensor that is null": ({"a": None}, b"1234"),
    "a tensor that is a string": ({"a": "dtype"}, b"1234"),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"1234"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
    "an unknown dtype": ({"a": tensor("F33")}, b"1234"),
    "a small dtype": ({"a": tensor("f32")}, b"1234"),
    "a dtype of numpy": ({"a": tensor("<f4")}, b"1234"),
    "a dtype that is a number": ({"a": tensor(32)}, b"1234"),
    "a dtype that is a list": ({"a": tensor(["F32"])}, b"1234"),
    "a dtype that is null": ({"a": tensor(None)}, b"1234"),
    "a shape that is a number": ({"a": {**A, "shape": 1}}, b"1234"),
    "a shape that is null": ({"a": {**A, "shape": None}}, b"1234"),
    "a shape of strings": ({"a": {**A, "shape": ["1"]}}, b"1234"),
    "a shape of booleans": ({"a": {**A, "shape": [True]}}, b"1234"),
    "a shape of fractions": ({"a": {**A, "shape": [1.0]}}, b"1234"),
    "a shape of null": ({"a": {**A, "shape": [None]}}, b"1234"),
    "a shape of lists": ({"a": {**A, "shape": [[1]]}}, b"1234"),
    "a negative shape": ({"a": {**A, "shape": [-1]}}, b"1234"),
    "a shape of two negatives": ({"a": {**A, "shape": [-1, -1]}}, b"1234"),
    "a shape of NaN": (b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', b"1234"),
    "a shape of Infinity": (b'{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,4]}}', b"1234"),
    "a shape of 1e0": (b'{"a":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}}', b"1234"),
    "a huge shape": ({"a": {**A, "shape": [1 << 62, 4]}}, b"1234"),
    "a shape that wraps around": ({"a": {**A, "shape": [1 << 32, 1 << 32, 1]}}, b"1234"),
    "a shape that wraps to one": ({"a": {**A, "shape": [(1 << 64) + 1]}}, b"1234"),
    "a shape of very many digits": (b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % (b"9" * 100_000), b"1234"),
    "many dimensions": ({"a": {**A, "shape": [1] * 65}}, b"1234"),
    "a million dimensions": ({"a": {**A, "shape": [1] * 1_000_000}}, b"1234"),
    "a shape that does not fit": ({"a": {**A, "shape": [2]}}, b"1234"),
    "one offset": ({"a": {**A, "data_offsets": [4]}}, b"1234"),
    "three offsets": ({"a": {**A, "data_offsets": [0, 4, 4]}}, b"1234"),
    "offsets that are a number": ({"a": {**A, "data_offsets": 4}}, b"1234"),
    "offsets in an object": ({"a": {**A, "data_offsets": {"0": 0, "1": 4}}}, b"1234"),
    "offsets of strings": ({"a": {**A, "data_offsets": ["0", "4"]}}, b"1234"),
    "offsets of booleans": ({"a": tensor("U8", (1,), False, True)}, b"1"),
    "offsets of fractions": ({"a": tensor("F32", (1,), 0.0, 4.0)}, b"1234"),
    "negative offsets": ({"a": tensor("F32", (1,), -4, 0)}, b"1234"),
    "negative zero": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-0.0,4]}}', b"1234"),
    "offsets turned": ({"a": tensor("F32", (1,), 4, 0)}, b"1234"),
    "offsets past the end": ({"a": tensor("F32", (2,), 0, 8)}, b"1234"),
    "offsets far past the end": ({"a": tensor("U8", (1 << 62,), 0, 1 << 62)}, b"1234"),
    "offsets beyond 64 bits": ({"a": tensor("F32", (1,), 1 << 64, (1 << 64) + 4)}, b"1234"),
    "offsets of NaN": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[NaN,NaN]}}', b"1234"),
    "a hole at the beginning": ({"a": tensor("F32", (1,), 4, 8)}, b"12345678"),
    "a hole between": ({"a": A, "b": tensor("F32", (1,), 8, 12)}, b"1" * 12),
    "a hole at the end": ({"a": A}, b"12345"),
    "bytes without tensors": ({}, b"1234"),
    "an overlap": ({"a": tensor("F32", (2,), 0, 8), "b": tensor("F32", (2,), 4, 12)}, b"1" * 12),
    "one in another": ({"a": tensor("F32", (3,), 0, 12), "b": tensor("F32", (1,), 4, 8)}, b"1" * 12),
    "the same twice": ({"a": A, "b": A}, b"1234"),
    "an empty one inside another": ({"a": tensor("F32", (2,), 0, 8), "b": tensor("F32", (0,), 4, 4)}, b"1" * 8),
    "an empty one past the end": ({"a": A, "b": tensor("F32", (0,), 9, 9)}, b"1234"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_a_value_error(tmp_path, what):
    header, data = WRONG[what]
    path = tmp_path / "a"
    if data is None:
        write(path, header)
    else:
        file_of(path, header, data)
    for cache in None, SMALLEST:
        error = refusal(lambda: dict(fastmap.safetensors(path, cache=cache)))
        assert type(error) is ValueError and str(path) in str(error), error
        assert len(str(error)) < 2000


def test_long_names_and_types_do_not_make_long_messages(tmp_path):
    long = "x" * 1_000_000
    for header in {long: {}}, {"a": tensor(long)}, {"a": {**A, "shape": [long]}}, {long: tensor("F32", (2,))}, {long: tensor("F32", (1,), 4, 8)}:
        error = refusal(lambda: fastmap.safetensors(file_of(tmp_path / "a", header, b"1" * 8)))
        assert type(error) is ValueError and len(str(error)) < 2000


def test_names_that_are_no_text_are_refused_or_can_be_used(tmp_path):
    # Half of a surrogate pair: JSON of Python's reads it, no other does.
    for name in '"\\ud800"', '"a\\udfff"':
        path = file_of(tmp_path / "a", f'{{{name}: {json.dumps(A)}}}'.encode(), b"1234")
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(path.read_bytes())
        assert type(refusal(lambda: fastmap.safetensors(path))) is ValueError


def test_what_the_package_reads_beyond_its_own_files_is_read(tmp_path):
    text = json.dumps({"a": {**A, "shape": [1]}})
    for header in text + " " * 1000, " " + text, text.replace("a", "\\u0061"), json.dumps({"__metadata__": {}, "a": A}, indent=1), '{"b":' + text[5:]:
        path = file_of(tmp_path / "a", header.encode(), b"1234")
        try:
            theirs = safetensors.numpy.load_file(path)
        except safetensors.SafetensorError:
            assert type(refusal(lambda: fastmap.safetensors(path))) is ValueError, header
        else:
            equal(fastmap.safetensors(path), theirs)


def test_a_length_that_lies_takes_no_memory(tmp_path):
    for length in 99_999_999, 1 << 40, 1 << 63:
        path = file_of(tmp_path / "a", {"a": A}, b"1234", length)
        tracemalloc.start()
        assert type(refusal(lambda: fastmap.safetensors(path))) is ValueError
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


LARGE = """
    import resource, sys, fastmap
    what, path = sys.argv[1:]
    part, head, tail = {
        "objects": (b"{},", b'{"a":[', b"{}]}"),
        "lists": (b"[],", b'{"a":[', b"[]]}"),
        "names": (b'"%07d":0,', b'{', b'"":0}'),
        "numbers": (b"0,", b'{"a":{"dtype":"F32","data_offsets":[0,4],"shape":[', b"0]}}"),
        "a string": (b"x", b'{"', b'":1}'),
        "spaces": (b" ", b"{", b"}"),
        "digits": (b"9", b'{"a":', b"}"),
    }[what]
    size = 10_000_000
    times = (size - len(head) - len(tail)) // len(part)
    text = head + (b"".join(part % number for number in range(times)) if b"%" in part else part * times) + tail
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"1234")
    del text
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        fastmap.safetensors(path)
    except ValueError as error:
        used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        print("refused", len(str(error)) < 2000, used // size)
"""


@pytest.mark.parametrize("what", ["objects", "lists", "names", "numbers", "a string", "spaces", "digits"])
def test_a_large_header_takes_memory_in_proportion(tmp_path, what):
    refused, is_short, times = printed(LARGE, what, tmp_path / "a").split()
    assert (refused, is_short) == ("refused", "True") and int(times) < 40


def test_a_file_that_is_cut_while_it_is_mapped_is_an_error_where_it_can_be(tmp_path):
    path = file_of(tmp_path / "a", {"a": tensor("U8", (100, 10_000), 0, 1_000_000)}, bytes(1_000_000))
    for cache in None, SMALLEST:
        weights = fastmap.safetensors(path, cache=cache)
        a = weights["a"]
        os.truncate(path, 500_000)
        with pytest.raises(OSError):
            fastmap.gather(a, [99])
        with pytest.raises(OSError):
            weights.mapping.read(999_000, 5)
        os.truncate(path, 0)
        file_of(path, {"a": tensor("U8", (100, 10_000), 0, 1_000_000)}, bytes(1_000_000))


def mutations(original, seed, count):
    """Files that are nearly right."""
    chance = np.random.default_rng(seed)
    header_end = 8 + int.from_bytes(original[:8], "little")
    digits = [place for place in range(8, header_end) if chr(original[place]).isdigit()]
    for _ in range(count):
        changed = bytearray(original)
        for _ in range(chance.integers(1, 4)):
            kind = chance.integers(0, 8)
            place = int(chance.integers(0, min(header_end + 4, len(changed)) or 1))
            if kind == 0:
                changed[place] ^= 1 << chance.integers(0, 8)
            elif kind == 1:
                changed[place] = chance.integers(0, 256)
            elif kind == 2:
                changed[min(int(chance.choice(digits)), len(changed) - 1)] = ord("0") + chance.integers(0, 10)
            elif kind == 3:
                del changed[place : place + chance.integers(1, 9)]
            elif kind == 4:
                changed[place:place] = changed[place : place + chance.integers(1, 40)]
            elif kind == 5:
                changed[place : place + 1] = chance.choice([b'"', b"[", b"]", b"{", b"}", b",", b":", b"-", b".", b"e", b"null", b"true", b"NaN", b"\\"])
            elif kind == 6:
                del changed[-int(chance.integers(1, 40)) :]
            else:
                changed += bytes(int(chance.integers(1, 9)))
            if chance.integers(0, 3) == 0 and len(changed) > 8 and kind in (3, 4, 5):
                # So that the length fits again.
                changed[:8] = struct.pack("<Q", max(header_end - 8 + len(changed) - len(original), 0))
            if not changed:
                changed = bytearray(1)
        yield bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_file_is_refused_or_read_as_the_package_reads_it(tmp_path, seed):
    tensors = {"bias": np.arange(3, dtype="f4"), "w.0": noise(24, 5).reshape(2, 3, 4), "empty": np.zeros((0, 2), "i8"), "x": np.float64(2)}
    original = safetensors.numpy.save({name: np.asarray(it) for name, it in tensors.items()}, {"format": "np"})
    count = 3000 if os.environ.get("FASTMAP_EFFORT") == "full" else 700
    refused = 0
    path = tmp_path / "a"
    for changed in mutations(original, seed, count):
        write(path, changed)
        try:
            ours = dict(fastmap.safetensors(path))
        except ValueError:
            refused += 1
            ours = None
        try:
            theirs = {
                name: (it["dtype"], tuple(it["shape"]), bytes(it["data"])) for name, it in safetensors.deserialize(changed)
            }
        except safetensors.SafetensorError:
            theirs = None
        except Exception as error:
            # Of the package's own: types that its Python side does not know.
            theirs = error
        if ours is None:
            # Types that numpy has nothing for may be refused.
            known = isinstance(theirs, dict) and all(it[0] in fastmap._safetensors._DTYPES for it in theirs.values())
            assert not known, changed
        else:
            assert isinstance(theirs, dict), changed
            assert {name: (it.shape, it.tobytes()) for name, it in ours.items()} == {
                name: it[1:] for name, it in theirs.items()
            }, changed
    assert count / 2 < refused < count, "most are to be refused, and not all"
