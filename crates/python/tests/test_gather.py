"""`fastmap.gather` and `memmap.prefetch` beside `numpy.take`."""

import itertools
import os

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from helpers import CACHES, PAGE, SMALLEST, noise, refusal, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastmap

DTYPES = [
    np.dtype(kind)
    for kind in ["?", "u1", "<i2", ">i4", "<u8", "f4", ">f8", "c16", "S5", "U3", "V7", "M8[s]"]
] + [
    np.dtype([("a", "u1"), ("b", "<i4", (2,)), ("c", "S3")]),
    np.dtype([("a", "u1"), ("b", "<i8")], align=True),
    np.dtype({"names": ["a", "b"], "formats": ["<i2", "u1"], "offsets": [4, 1], "itemsize": 11}),
]  # fmt: skip

HOW = settings(
    max_examples=500 if os.environ.get("FASTMAP_EFFORT") == "full" else 60,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def take(array, indices, axis):
    """What is expected: masks as in indexing."""
    indices = np.asarray(indices)
    if indices.dtype == bool:
        indices = np.flatnonzero(indices)
    return np.take(np.asarray(array), indices.astype(np.int64), axis)


def same(ours, expected):
    assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.names:
        # Padding is nobody's.
        for name in expected.dtype.names:
            assert ours[name].tobytes() == expected[name].tobytes()
    elif expected.dtype == bool:
        # Of other bytes than 0 and 1 numpy makes what it likes.
        assert (ours == expected).all()
    else:
        assert ours.tobytes() == expected.tobytes()


@st.composite
def views(draw, array_of):
    """A view of an array over a file, and the same of the array's bytes in memory."""
    dtype = draw(st.sampled_from(DTYPES))
    most = draw(st.sampled_from([3, 20, 200]))
    shape = tuple(draw(st.lists(st.integers(0, most), min_size=1, max_size=3 if most == 20 else 2)))
    offset = draw(st.sampled_from([0, 1, 8, 4095, 4096, 5000]))
    order = draw(st.sampled_from("CF"))
    array, shadow = array_of(dtype, shape, offset, order)
    if dtype.names and draw(st.booleans()):
        name = draw(st.sampled_from(dtype.names))
        array, shadow = array[name], shadow[name]
    permutation = draw(st.permutations(range(array.ndim)))
    array, shadow = array.transpose(permutation), shadow.transpose(permutation)
    slices = tuple(
        slice(
            draw(st.one_of(st.none(), st.integers(-length - 1, length + 1))),
            draw(st.one_of(st.none(), st.integers(-length - 1, length + 1))),
            draw(st.sampled_from([None, 1, 1, 2, 3, -1, -1, -2, 7])),
        )
        for length in array.shape
    )
    if draw(st.booleans()):
        array, shadow = array[slices], shadow[slices]
    extra = draw(st.sampled_from([None, None, 0, array.ndim]))
    if extra is not None:
        array, shadow = np.expand_dims(array, extra), np.expand_dims(shadow, extra)
    if draw(st.booleans()):
        array = np.asarray(array)
    return array, shadow


@st.composite
def indices_of(draw, length):
    if draw(st.integers(0, 4)) == 0:
        return draw(hnp.arrays(bool, (length,)))
    if length == 0:
        return draw(st.sampled_from([[], np.empty((0, 3), int), np.empty((2, 0), "u1"), ()]))
    shape = draw(st.sampled_from([(), (1,), (5,), (40,), (0,), (2, 3), (2, 1, 2), (3, 0)]))
    kind = draw(st.sampled_from(["i8", "i4", "u4", ">i2", "u8"]))
    unsigned = np.dtype(kind).kind == "u"
    values = draw(hnp.arrays(kind, shape, elements=st.integers(0 if unsigned else -length, length - 1)))
    return draw(st.sampled_from([values, values.tolist()]))


@st.composite
def outputs(draw, expected, mapped):
    """An array to put it into: contiguous or not, mapped or not, of the same type or one that holds it."""
    what = draw(st.sampled_from(["none", "none", "C", "F", "strided", "reversed", "mapped", "wider", "swapped"]))
    shape, dtype = expected.shape, expected.dtype
    if what == "none":
        return None
    if what == "mapped":
        return mapped(dtype, shape)
    if what == "wider" and dtype.kind in "iuf" and not dtype.names:
        return np.zeros(shape, {"i": "i8", "u": "u8", "f": "f8"}[dtype.kind])
    if what == "swapped" and not dtype.names:
        return np.zeros(shape, dtype.newbyteorder())
    if what == "strided":
        return np.zeros((*shape, 2), dtype)[..., 0]
    if what == "reversed":
        return np.zeros(shape, dtype)[(..., *(slice(None, None, -1) for _ in shape))]
    return np.zeros(shape, dtype, "F" if what == "F" else "C")


@pytest.mark.parametrize("cache", [None, SMALLEST])
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_it_returns_what_take_returns(tmp_path, mode, cache):
    content = noise(400_000, 7)
    number = itertools.count()
    limit = cache and fastmap.Cache(cache)
    path = write(tmp_path / "a", content.tobytes())
    shadow_bytes = content.copy()
    # Stores of the program's own: private ones, or those that the file has not yet.
    patch = slice(3000, 20_000, 7)
    stored = fastmap.memmap(path, mode=mode, cache=limit) if mode != "r" else None
    if mode == "r+":
        stored[patch] = 77
        shadow_bytes[patch] = 77

    def array_of(dtype, shape, offset, order):
        bytes_wanted = int(np.prod(shape)) * dtype.itemsize
        if offset + bytes_wanted > content.size or bytes_wanted == 0:
            shape = tuple(min(max(length, 1), 20) for length in shape)
            bytes_wanted = int(np.prod(shape)) * dtype.itemsize
        array = fastmap.memmap(path, dtype, mode, offset, shape, order, cache=limit)
        shadow = shadow_bytes.copy()
        if mode == "c":
            whole = np.frombuffer(array.mapping, "u1")
            whole[::5] ^= 90
            shadow[offset : offset + bytes_wanted : 5] ^= 90
            del whole
        return array, np.ndarray(shape, dtype, shadow.tobytes(), offset, order=order)

    def mapped(dtype, shape):
        name = tmp_path / f"out{next(number) % 7}"
        return fastmap.memmap(name, dtype, "w+", next(number) % 5, shape, cache=limit)

    @HOW
    @given(st.data())
    def check(data):
        array, shadow = data.draw(views(array_of))
        axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
        indices = data.draw(indices_of(array.shape[axis]))
        expected = take(shadow, indices, axis)
        out = data.draw(outputs(expected, mapped))
        result = fastmap.gather(array, indices, out, axis)
        if out is None:
            same(result, expected)
        else:
            assert result is out
            same(np.array(out, expected.dtype), expected)
        # And none of it was stored to.
        same(np.array(array), shadow)
        if isinstance(array, fastmap.memmap) and array.size:
            wait = data.draw(st.booleans())
            assert array.prefetch(indices, axis, wait) >= 0
            same(fastmap.gather(array, indices, axis=axis), expected)

    check()
    if cache and mode != "c":
        assert limit.stats()["evicted_pages"] > 0
    if mode == "r+":
        assert (np.asarray(stored) == shadow_bytes).all()


@pytest.fixture(params=CACHES, ids=str)
def table(request, tmp_path):
    """A table of a megabyte with its shadow."""
    shadow = noise(1 << 20, 8).view("u4").reshape(2048, 128)
    path = write(tmp_path / "table", shadow.tobytes())
    return fastmap.memmap(path, "u4", "r", shape=shadow.shape, cache=request.param), shadow


def test_rows_come_in_the_order_asked_and_as_often(table):
    a, shadow = table
    rows = [2047, 0, 0, 5, -1, 2047, -2048, 5]
    result = fastmap.gather(a, rows)
    assert type(result) is np.ndarray and (result == shadow[rows]).all() and result.flags.writeable
    assert (fastmap.gather(a, indices=rows, axis=0) == shadow[rows]).all()
    assert (fastmap.gather(a, [3, 3, 100], axis=1) == shadow[:, [3, 3, 100]]).all()
    assert (fastmap.gather(a[::-3].T, [1, 1, 0], axis=-1) == shadow[::-3].T[:, [1, 1, 0]]).all()


def test_all_rows_together_may_be_larger_than_the_cache(table):
    a, shadow = table
    rows = np.random.default_rng(9).integers(-2048, 2048, 20_000)
    out = np.empty((20_000, 128), "u4")
    assert fastmap.gather(a, rows, out) is out
    assert (out == shadow[rows]).all()
    if a.cache:
        assert a.cache.stats()["resident_pages"] * PAGE <= a.cache.capacity


def test_a_row_larger_than_the_cache_is_copied(table):
    a, shadow = table
    a, shadow = a.reshape(4, -1), shadow.reshape(4, -1)
    assert (fastmap.gather(a, [3, 0, 3]) == shadow[[3, 0, 3]]).all()
    assert (fastmap.gather(a[None], [0]) == shadow[None]).all()
    assert a.prefetch([1, 2], wait=True) == 2


def test_more_ranges_than_are_handed_over_at_once_are_copied(table):
    a, shadow = table
    flat = a.reshape(-1)
    places = np.random.default_rng(10).integers(0, flat.size, 280_000) // 9
    assert (fastmap.gather(flat, places) == shadow.reshape(-1)[places]).all()
    assert (fastmap.gather(a[:, ::2], np.arange(2048)) == shadow[:, ::2]).all()
    assert flat.prefetch(np.arange(280_000) % 500, wait=True) == 280_000


def test_booleans_choose_rows_as_in_indexing(table):
    a, shadow = table
    chosen = np.random.default_rng(11).random(2048) < 0.1
    assert (fastmap.gather(a, chosen) == shadow[chosen]).all()
    assert (fastmap.gather(a, chosen.tolist()) == shadow[chosen]).all()
    assert fastmap.gather(a, np.zeros(2048, bool)).shape == (0, 128)
    assert a.prefetch(chosen, wait=True) == chosen.sum()


def test_other_arrays_are_taken_from_by_numpy():
    shadow = np.arange(20).reshape(5, 4)
    for array in shadow, shadow.tolist(), shadow.T.copy().T:
        assert (fastmap.gather(array, [4, -5]) == shadow[[4, 0]]).all()
        assert (fastmap.gather(array, [1], axis=1) == shadow[:, [1]]).all()
    out = np.empty((1, 4), int)
    assert fastmap.gather(shadow, [2], out) is out and (out == shadow[[2]]).all()


def test_any_view_of_a_mapping_is_gathered_from(tmp_path):
    shadow = noise(100_000, 12)
    path = write(tmp_path / "a", shadow.tobytes())
    with fastmap.open(path, cache=SMALLEST) as mapping:
        rows = np.arange(99, -1, -1)
        for array in np.frombuffer(mapping, "u1"), np.frombuffer(memoryview(mapping)[:], "u1"), np.asarray(memoryview(mapping)):
            before = mapping.stats()["prefetched_pages"]
            assert (fastmap.gather(array.reshape(100, 1000), rows) == shadow.reshape(100, 1000)[rows]).all()
            assert mapping.stats()["prefetched_pages"] > before, "not many reads at a time"
            del array


def test_the_rows_are_read_side_by_side_and_not_one_by_one(tmp_path):
    shadow = noise(4 << 20, 13).reshape(1024, 4096)
    a = fastmap.memmap(write(tmp_path / "a", shadow.tobytes()), mode="r", shape=shadow.shape, cache="1MiB")
    a.mapping.advise("random")
    rows = np.random.default_rng(1).permutation(1024)
    assert (fastmap.gather(a, rows) == shadow[rows]).all()
    stats = a.cache.stats()
    assert stats["prefetched_pages"] >= 1000 and stats["misses"] <= 24


def test_out_may_be_any_array_of_the_shape(tmp_path, table):
    a, shadow = table
    rows = [9, 9, 1500]
    outs = [
        np.empty((3, 128), "u4"),
        np.empty((3, 128), "f8"),
        np.empty((3, 128), ">i8"),
        np.empty((128, 3), "u4").T,
        np.empty((6, 256), "u4")[::-2, ::2],
        fastmap.memmap(tmp_path / "out", "u4", "w+", 12, (3, 128), cache=a.cache),
        fastmap.memmap(tmp_path / "out2", "u4", "w+", 0, (3, 128), cache=SMALLEST),
        fastmap.memmap(tmp_path / "out3", "u4", "w+", 0, (128, 3)).T,
        np.frombuffer(bytearray(1537), "u4", 384, 1).reshape(3, 128),
    ]
    for out in outs:
        assert fastmap.gather(a, rows, out=out) is out
        assert (out == shadow[rows]).all()
    assert np.fromfile(tmp_path / "out3", "u4").reshape(128, 3).T.tolist() == shadow[rows].tolist()


def test_out_may_lie_in_the_array_itself(tmp_path):
    for cache in None, SMALLEST:
        shadow = noise(400_000, 14).reshape(400, 1000)
        a = fastmap.memmap(write(tmp_path / "a", shadow.tobytes()), mode="r+", shape=shadow.shape, cache=cache)
        rows = np.arange(399, -1, -1)
        fastmap.gather(a, rows, a)
        assert (a == shadow[rows]).all()
        shadow = shadow[rows]
        fastmap.gather(a[:5], [4, 3], a[10:12])
        shadow[10:12] = shadow[[4, 3]]
        fastmap.gather(a, [300, 301], a[301:303])
        shadow[301:303] = shadow[[300, 301]]
        assert (a == shadow).all()
        del a


def test_indices_may_be_the_output_and_may_be_mapped(tmp_path):
    shadow = np.arange(999, -1, -1)
    a = fastmap.memmap(tmp_path / "a", np.int64, "w+", shape=1000, cache=SMALLEST)
    a[:] = shadow
    indices = np.arange(0, 1000, 3)
    expected = shadow[indices]
    fastmap.gather(a, indices, indices)
    assert (indices == expected).all()
    mapped = fastmap.memmap(tmp_path / "i", np.int64, "w+", shape=334, cache=SMALLEST)
    mapped[:] = indices
    assert (fastmap.gather(a, mapped) == shadow[indices]).all()
    assert (fastmap.gather(a, a) == shadow[shadow]).all()


def test_private_stores_are_gathered(tmp_path):
    shadow = noise(100_000, 15).reshape(100, 1000)
    a = fastmap.memmap(write(tmp_path / "a", shadow.tobytes()), mode="c", shape=shadow.shape, cache=SMALLEST)
    a[7] = 5
    assert (fastmap.gather(a, [7, 8]) == [[5] * 1000, shadow[8]]).all()
    assert (np.fromfile(tmp_path / "a", "u1") == shadow.ravel()).all()


# Wrong calls: as `numpy.take` or indexing.

WRONG_INDICES = [
    [2048],
    [-2049],
    2048,
    [[0], [5000]],
    np.uint64(1 << 63),
    np.array([3, 1 << 62]),
    np.int64(-(1 << 63)),
    [1 << 70],
    [10**30],
    [0.5],
    np.float64(1),
    ["a"],
    [None],
    None,
    1 + 2j,
    np.array([1], object),
    np.array(["2020"], "M8[Y]"),
    [True],
    np.ones(2047, bool),
    np.ones((2048, 128), bool),
    [[1, 2], [3]],
]


@pytest.mark.parametrize("indices", WRONG_INDICES, ids=range(len(WRONG_INDICES)))
def test_wrong_indices_are_refused_in_numpys_words(table, indices):
    a, shadow = table
    try:
        as_array = np.asarray(indices)
    except ValueError as error:
        allowed = [error]
    else:
        allowed = []
        for call in lambda: shadow[as_array], lambda: np.take(shadow, as_array, 0), lambda: np.take(shadow, indices, 0):
            try:
                call()
            except Exception as error:
                allowed.append(error)
    calls = [lambda: fastmap.gather(a, indices)]
    if indices is not None:
        calls.append(lambda: a.prefetch(indices))
    for call in calls:
        error = refusal(call)
        if as_array_is_a_mask_of_elements(indices, shadow):
            # Which indexing takes, and take along an axis cannot mean.
            assert isinstance(error, IndexError)
        elif isinstance(indices, np.uint64):
            assert isinstance(error, IndexError) and str(1 << 63) in str(error)
        else:
            # What follows is another in versions of numpy.
            same = "boolean index did not match indexed array along "
            words = [(type(it), same if str(it).startswith(same) else str(it)) for it in allowed]
            ours = (type(error), same if str(error).startswith(same) else str(error))
            assert ours in words, f"{error!r}, where numpy has {allowed!r}"


def as_array_is_a_mask_of_elements(indices, shadow):
    return isinstance(indices, np.ndarray) and indices.dtype == bool and indices.shape == shadow.shape


@pytest.mark.parametrize("axis", [2, -3, "0", 0.0, [0]], ids=str)
def test_a_wrong_axis_is_refused_in_numpys_words(table, axis):
    a, shadow = table
    theirs = refusal(lambda: np.take(shadow, [0], axis))
    for call in lambda: fastmap.gather(a, [0], axis=axis), lambda: a.prefetch([0], axis):
        error = refusal(call)
        assert (type(error), str(error)) == (type(theirs), str(theirs))


def test_there_is_no_flattened_array_to_gather_from(table):
    a, _ = table
    for axis in None, 1 << 70:
        assert isinstance(refusal(lambda: fastmap.gather(a, [0], axis=axis)), (TypeError, ValueError, OverflowError))


def test_a_wrong_output_is_refused_and_stays_as_it_is(table):
    a, shadow = table
    locked = np.zeros((2, 128), "u4")
    locked.flags.writeable = False
    wrong_shapes = [np.zeros(shape, "u4") for shape in [(1, 128), (2, 127), (2,), (256,), (2, 128, 1), (1, 2, 128), (128, 2), ()]]
    for out in wrong_shapes:
        error = refusal(lambda: fastmap.gather(a, [0, 1], out))
        theirs = refusal(lambda: np.take(shadow, [0, 1], 0, out))
        assert (type(error), str(error)) == (type(theirs), str(theirs))
        assert not out.any()
    read_only = [locked, np.frombuffer(bytes(1024), "u4").reshape(2, 128), a[:2], np.broadcast_to(np.zeros(128, "u4"), (2, 128))]
    for out in read_only:
        error = refusal(lambda: fastmap.gather(a, [5, 1], out))
        assert type(error) is type(refusal(lambda: np.take(shadow, [5, 1], 0, out))) is ValueError and "read-only" in str(error)
    assert not locked.any() and (a[:2] == shadow[:2]).all()
    for out in [0] * 256, "out", 5, bytearray(1024), memoryview(bytearray(1024)):
        assert type(refusal(lambda: fastmap.gather(a, [0, 1], out))) is type(refusal(lambda: np.take(shadow, [0, 1], 0, out)))
    for dtype in "u1", "i4", "f4", "?", "S9", "M8[s]", [("a", "u4"), ("b", "u4")]:
        # Which cannot hold every number of the array.
        out = np.zeros((2, 128), dtype)
        assert isinstance(refusal(lambda: fastmap.gather(a, [0, 1], out)), TypeError)
        assert out.tobytes() == bytes(out.nbytes)


def test_a_wrong_index_leaves_the_output_as_it_is(table):
    a, _ = table
    out = np.zeros((3, 128), "u4")
    with pytest.raises(IndexError):
        fastmap.gather(a, [0, 1, 2048], out)
    assert not out.any()


def test_arrays_without_dimensions_have_no_rows(tmp_path):
    a = fastmap.memmap(tmp_path / "a", "f4", "w+", shape=(), cache=SMALLEST)
    with pytest.raises(np.exceptions.AxisError):
        fastmap.gather(a, [0])
    with pytest.raises(np.exceptions.AxisError):
        a.prefetch([0])


def test_an_array_of_no_rows_gives_none(tmp_path):
    for shape in (0, 5), (5, 0), (0,):
        a = fastmap.memmap(tmp_path / "a", "f4", "w+", shape=shape, cache=SMALLEST)
        assert fastmap.gather(a, []).shape == np.take(np.empty(shape), [], 0).shape
        assert fastmap.gather(a, np.zeros(shape[0], bool)).shape == (0, *shape[1:])
        if shape[0]:
            assert fastmap.gather(a, [4, 4]).shape == (2, 0)
        else:
            with pytest.raises(IndexError):
                fastmap.gather(a, [0])
            with pytest.raises(IndexError):
                fastmap.gather(a, [-1])


# Prefetching.


def test_rows_that_were_prefetched_are_no_misses(tmp_path):
    shadow = noise(4 << 20, 16).reshape(1024, 4096)
    a = fastmap.memmap(write(tmp_path / "a", shadow.tobytes()), mode="r", shape=shadow.shape, cache="1MiB")
    a.mapping.advise("random")
    rows = np.random.default_rng(2).permutation(1024)[:100]
    assert a.prefetch(rows, wait=True) == 100
    before = a.cache.stats()
    assert before["prefetched_pages"] >= 100
    assert (a[rows] == shadow[rows]).all()
    assert a.cache.stats()["misses"] == before["misses"]
    # A column is a range for each row.
    assert a[:50].prefetch([7], 1, wait=True) == 50
    assert a.prefetch(rows) <= 100 and (a[rows] == shadow[rows]).all()


def test_prefetch_without_rows_is_for_all(table):
    a, shadow = table
    assert a[:10].prefetch(wait=True) == 10
    assert a.prefetch([]) == 0 and a[5:5].size == 0
    assert 0 < a.prefetch() <= 2048
    assert (a == shadow).all()
    with pytest.raises(TypeError):
        a.prefetch(wat=True)


def test_what_prefetch_returns_is_a_number_of_first_ranges(table, monkeypatch):
    # So that the rest can be asked for: none is taken after one that was not.
    a, _ = table
    given = []

    def some(mapping, starts, lengths, wait):
        given.append(len(starts))
        return min(len(starts), 1000)

    monkeypatch.setattr(fastmap.Mapping, "_prefetch_arrays", some)
    assert a.reshape(-1)[: 1 << 17].prefetch() == 1000
    assert a.reshape(-1).prefetch(np.zeros(600_000, int)) == 1000
    assert len(given) == 2, given
