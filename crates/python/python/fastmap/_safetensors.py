"""Weights in files of the format safetensors."""

import collections.abc
import json
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from ._mapping import CacheLike, Mapping, SizeLike, is_url, open as _open

__all__ = ["SafeTensors", "safetensors"]

# What numpy has no type for is given as unsigned integers of that size.
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip
# The format's own limit, bytes.
_MOST = 100_000_000


class SafeTensors(collections.abc.Mapping):
    """Names to arrays: what `safetensors` returns. The arrays are for reading, and keep the file mapped.

    Attributes
    ----------
    mapping : Mapping or None
        The tensors' bytes; None where there are none. Of an object all of it.
    metadata : dict of str to str
        What the header says beside the tensors.
    dtypes : dict of str to str
        The format's names of types: "BF16", which numpy has no type for, is given as uint16, types of 8 bits as uint8.
    """

    def __init__(self, mapping: Optional[Mapping], header: Dict[str, Tuple[str, Tuple[int, ...], int, int]], metadata: Dict[str, str]):
        self.mapping = mapping
        self.metadata = metadata
        self.dtypes = {name: entry[0] for name, entry in header.items()}
        self._header = header

    def __getitem__(self, name: str) -> np.ndarray:
        dtype, shape, begin, end = self._header[name]
        array = np.frombuffer(memoryview(self.mapping)[begin:end], _DTYPES[dtype]) if end > begin else np.empty(0, _DTYPES[dtype])
        return array.reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)

    def __len__(self) -> int:
        return len(self._header)

    def __repr__(self) -> str:
        return f"<fastmap.SafeTensors: {len(self)} tensors, {0 if self.mapping is None else len(self.mapping)} bytes>"


def safetensors(
    path: Any,
    cache: CacheLike = None,
    *,
    tier: Union[None, str, "os.PathLike[str]"] = None,
    tier_limit: SizeLike = None,
    deadline: Optional[float] = 30.0,
) -> SafeTensors:
    """Maps the tensors of a file, or an object of a store, of the format safetensors.

    Parameters
    ----------
    path : str, path or URL
        The file or the object.
    cache : None, int, str or Cache, optional
        The limit on the memory of the tensors: see `memmap`.
    tier, tier_limit, deadline : optional
        Of an object: where its local copy lies, how much of the disk it may take, and how long its store may take: see `open`.

    Returns
    -------
    SafeTensors
        Names to arrays: views of the mapped file, for reading. ``torch.frombuffer(array, dtype=...)`` makes a tensor of one without a copy.

    Raises
    ------
    ValueError
        It is no such file: the header is too large or no JSON, or a tensor has an unknown type, a shape that does not fit its bytes, or bytes
        outside the file, of another tensor, or with a gap before them.
    OSError
        Of an object: see `open`.

    Notes
    -----
    The format is that of https://github.com/huggingface/safetensors.

    Examples
    --------
    >>> weights = fastmap.safetensors("model.safetensors", cache="1MiB")
    >>> weights["bias"]
    array([0., 1., 2.], dtype=float32)
    """
    if is_url(path):
        whole = _open(path, cache=cache, tier=tier, tier_limit=tier_limit, deadline=deadline)
        length = int.from_bytes(whole.read(0, min(8, len(whole))), "little")
        _check_length(whole.url, len(whole), length)
        header, metadata = _parsed(whole.url, whole.read(8, length), len(whole) - 8 - length)
        places = {name: (dtype, shape, begin + 8 + length, end + 8 + length) for name, (dtype, shape, begin, end) in header.items()}
        return SafeTensors(whole if len(whole) > 8 + length else None, places, metadata)
    path = os.fspath(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        _check_length(path, size, length)
        text = file.read(length)
        header, metadata = _parsed(path, text, size - 8 - length)
        mapping = _open(file, "r", offset=8 + length, cache=cache) if size > 8 + length else None
    return SafeTensors(mapping, header, metadata)


def _check_length(path: Optional[str], size: int, length: int) -> None:
    if size < 8:
        raise ValueError(f"{path!r} is not a safetensors file: {size} bytes are less than the length of a header")
    if length > _MOST or length > size - 8:
        raise ValueError(f"{path!r}: a header of {length} bytes is too large (at most {_MOST}, in a file of {size} bytes)")


def _parsed(path: Optional[str], text: bytes, room: int) -> Tuple[Dict[str, Tuple[str, Tuple[int, ...], int, int]], Dict[str, str]]:
    def once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        names = dict(pairs)
        for name in names:
            name.encode()  # A surrogate alone is no text.
        if len(names) < len(pairs):
            raise ValueError("a name is there twice")
        return names

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path!r}: the header is no JSON of this format: {error!s:.200}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path!r}: the header is not an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{path!r}: __metadata__ is not names to strings")
    tensors = {name: _tensor(path, name, entry, room) for name, entry in header.items()}
    end = 0
    for name, (_, _, begin, after) in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if begin != end:
            what = "overlaps another" if begin < end else "has a gap before it"
            raise ValueError(f"{path!r}: tensor {name!r:.100} at byte {begin} {what}")
        end = after
    if end != room:
        raise ValueError(f"{path!r}: {room} bytes of tensors are there, of which the header names {end}")
    return tensors, metadata


def _tensor(path: Optional[str], name: str, entry: Any, room: int) -> Tuple[str, Tuple[int, ...], int, int]:
    def refuse(why: str) -> ValueError:
        return ValueError(f"{path!r}: tensor {name!r:.100} {why}")

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise refuse("has not a dtype, a shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise refuse(f"has an unknown type: {dtype!r:.100}")

    def are_sizes(numbers: Any) -> bool:
        return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)

    if not are_sizes(shape) or len(shape) > 32:
        raise refuse(f"has no shape: {shape!r:.100}")
    if not are_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= room:
        raise refuse(f"lies outside of the file: {offsets!r:.100} of {room} bytes")
    length = np.dtype(_DTYPES[dtype]).itemsize
    for dimension in shape:
        length *= dimension
    if length != offsets[1] - offsets[0]:
        raise refuse(f"of shape {shape} has {length} bytes, and {offsets[1] - offsets[0]} in the file")
    return dtype, tuple(shape), offsets[0], offsets[1]
