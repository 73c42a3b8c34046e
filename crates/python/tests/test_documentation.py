"""What the package says of itself is there, and true."""

import builtins
import doctest
import importlib.util
import inspect
import re
import string
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from helpers import cannot_run, write

import fastmap


def documented():
    """All public names: functions and classes, and of these what they have that the package made."""
    found = {"fastmap": fastmap}
    for name in fastmap.__all__:
        item = getattr(fastmap, name)
        if isinstance(item, str):
            continue
        found[name] = item
        if inspect.isclass(item):
            for kind in item.__mro__:
                if kind.__module__.split(".")[0] == "fastmap":
                    for member, value in sorted(vars(kind).items()):
                        if not member.startswith("_"):
                            found.setdefault(f"{name}.{member}", getattr(item, member) if not isinstance(value, property) else value)
    found["load_ipython_extension"] = fastmap.load_ipython_extension
    return found


NAMES = documented()


def examples_of(item):
    return doctest.DocTestParser().get_examples(inspect.getdoc(item) or "")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files that examples name."""
    monkeypatch.chdir(tmp_path)
    table = np.zeros((1000, 128), np.float32)
    table[7] = 1
    write("table.f32", table.tobytes())
    safetensors.numpy.save_file({"bias": np.arange(3, dtype=np.float32)}, "model.safetensors")


def test_the_names_that_the_issue_asks_for_are_public():
    assert {"memmap", "gather", "open", "Mapping", "Cache", "safetensors"} <= set(fastmap.__all__)
    assert all(hasattr(fastmap, name) for name in fastmap.__all__)
    members = {name for name in NAMES if "." in name}
    wanted = "close closed writable cache engine flush read write advise prefetch pin stats".split()
    assert {f"Mapping.{name}" for name in wanted} <= members
    assert {"Cache.capacity", "Cache.resize", "Cache.stats", "memmap.prefetch", "memmap.flush", "memmap.mapping", "memmap.cache"} <= members
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", fastmap.__version__)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_thing_has_a_description(name):
    doc = inspect.getdoc(NAMES[name])
    assert doc and len(doc) > 20 and doc[0] in "`%" + string.ascii_uppercase, doc
    assert doc.split("\n\n")[0].rstrip().endswith((".", ":", "?")), doc
    # Of its own, and not of what it is derived from.
    bases = [np.memmap, np.ndarray, object, dict]
    assert doc not in [inspect.getdoc(getattr(base, name.split(".")[-1], base)) for base in bases]


@pytest.mark.parametrize("name", [name for name in NAMES if examples_of(NAMES[name])])
def test_its_examples_do_what_they_say(name, files):
    test = doctest.DocTest(
        examples_of(NAMES[name]), {"fastmap": fastmap, "np": np, "numpy": np, "open": builtins.open}, name, None, 0, None
    )
    said = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("name", ["fastmap", *(name for name in fastmap.__all__ if name != "__version__")])
def test_every_public_name_has_an_example(name):
    item = NAMES[name]
    # What only a function makes has its example there.
    made_by = {"Mapping": "open", "SafeTensors": "safetensors"}
    assert examples_of(item) or examples_of(NAMES[made_by.get(name, name)])


@pytest.mark.parametrize("name", [name for name in NAMES if callable(NAMES[name]) and not inspect.isclass(NAMES[name])])
def test_every_parameter_is_described_and_every_described_one_is_there(name):
    doc = inspect.getdoc(NAMES[name])
    parameters = [it for it in inspect.signature(NAMES[name]).parameters if it not in ("self", "ipython")]
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", doc, re.S | re.M)
    told = re.findall(r"^(\w[\w, ]*)(?: :.*)?$", section[1], re.M) if section else []
    told = [word for line in told for word in line.split(", ")]
    if section:
        assert told == parameters
    else:
        # Short ones say it in their sentence.
        assert len(parameters) <= 3


def test_help_can_be_shown():
    import pydoc

    for item in (fastmap, *NAMES.values()):
        text = pydoc.plain(pydoc.render_doc(item))
        assert len(text) > 40 and "no docstring" not in text


def test_signatures_can_be_read():
    for name, item in NAMES.items():
        if callable(item):
            assert "args" not in str(inspect.signature(item)), name


def test_the_types_are_part_of_the_package():
    folder = Path(fastmap.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_native.pyi").exists()


USE = """
    from pathlib import Path
    from typing import Any, Dict, Optional
    import numpy as np
    import fastmap

    cache: fastmap.Cache = fastmap.Cache("1GiB")
    cache.resize(1 << 20)
    counters: Dict[str, int] = cache.stats()
    capacity: int = cache.capacity
    a = fastmap.memmap("x", np.float32, "r", shape=(3, 4), cache=cache)
    b: fastmap.memmap = fastmap.memmap(Path("x"), cache="1GiB")
    taken: int = a.prefetch([1, 2], axis=1, wait=True)
    rows: np.ndarray[Any, Any] = fastmap.gather(a, [1, 2], out=None, axis=0)
    mapping: Optional[fastmap.Mapping] = a.mapping
    with fastmap.open("x", "r+", offset=1, length=2, cache=None) as opened:
        data: bytes = opened.read(0, 1)
        opened.write(0, b"1")
        opened.flush()
        opened.advise("random")
        opened.prefetch([(0, 1)])
        with opened.pin(0, 1) as part:
            view: memoryview = part
        whole = np.frombuffer(memoryview(opened), np.uint8)
        copied: bytes = bytes(opened)
        engine: str = opened.engine
    weights = fastmap.safetensors("x", cache=1 << 20)
    tensor: np.ndarray[Any, Any] = weights["a"]
"""


def test_a_program_that_uses_it_passes_mypy_and_a_wrong_one_does_not(tmp_path):
    if importlib.util.find_spec("mypy") is None:
        cannot_run("no mypy")
    (tmp_path / "use.py").write_text(textwrap.dedent(USE))
    (tmp_path / "wrong.py").write_text(
        'import fastmap\nfastmap.Cache([])\nfastmap.open("x").read("a", 1)\nfastmap.memmap("x", cache=1.5)\n'
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, "use.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("wrong.py")] == [], done.stdout + done.stderr
    assert [line.split(":")[1] for line in lines if "error:" in line] == ["2", "3", "4"], done.stdout


def test_the_stubs_say_what_is_there(tmp_path):
    if importlib.util.find_spec("mypy") is None:
        cannot_run("no mypy")
    # It has the buffer protocol, which has a name from 3.12 on.
    (tmp_path / "allowed").write_text("fastmap._native.Mapping.__buffer__\n" if sys.version_info < (3, 12) else "")
    command = [sys.executable, "-m", "mypy.stubtest", "fastmap._native", "--ignore-disjoint-bases", "--allowlist", "allowed"]
    (tmp_path / "mypy.ini").write_text(f"[mypy]\ncache_dir = {tmp_path / 'cache'}\n")
    done = subprocess.run([*command, "--mypy-config-file", "mypy.ini"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
