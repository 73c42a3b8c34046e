"""The cell magic, in a shell of this process and in a notebook's kernel."""

import gc
import os
import re
import xml.etree.ElementTree as ElementTree

import pytest
from helpers import PAGE, noise, write

import fastmap


@pytest.fixture
def shell(tmp_path, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    gc.collect()  # Caches of other tests.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    shell.run_line_magic("load_ext", "fastmap")
    shell.run_cell("import fastmap, numpy as np")
    yield shell
    shell.reset()
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def ran(shell, cell):
    """What a cell said, the figure, and its result."""
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        result = shell.run_cell("%%fastmap\n" + cell)
    figures = [output.data["image/svg+xml"] for output in captured.outputs if "image/svg+xml" in output.data]
    return captured.stdout, figures, result


LINE = re.compile(
    r"(?P<seconds>[\d.e+-]+) s: (?P<misses>-?\d+) misses, (?P<ahead>-?\d+) pages read before they were touched, (?P<evicted>-?\d+) evicted, "
    r"(?P<written>-?\d+) written; (?P<memory>[\d.]+ \w+) in memory of (?P<limit>[\d.]+ \w+); (?P<major>-?\d+) major faults of the kernel"
)


def numbers(text):
    found = LINE.search(text)
    assert found, text
    return {name: int(value) if value.lstrip("-").isdigit() else value for name, value in found.groupdict().items()}


def check(figure):
    """It is SVG that shows something, all inside it."""
    root = ElementTree.fromstring(figure)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    width, height = float(root.get("width")), float(root.get("height"))
    bars = root.findall("{*}rect")
    for bar in bars:
        x, y, wide, high = (float(bar.get(name)) for name in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and wide > 0 and high > 0 and x + wide <= width + 1 and y + high <= height, bar.attrib
    points = [tuple(map(float, point.split(","))) for point in root.find("{*}polyline").get("points").split()]
    assert len(points) >= 2 and all(0 <= x <= width and 0 <= y <= height for x, y in points), points
    assert "memory, up to" in root.find("{*}text").text
    return bars, points


def test_a_cell_says_what_it_missed_and_kept_and_shows_it(shell, tmp_path):
    write(tmp_path / "a", noise(4 << 20, 60).tobytes())
    shell.run_cell("a = fastmap.memmap('a', mode='r+', cache='1MiB'); a.mapping.advise('random')")
    before = shell.user_ns["a"].cache.stats()
    text, figures, result = ran(shell, f"total = int(a[::{PAGE}].sum())\nprint('from the cell')\nfastmap.gather(a, range(0, 1 << 20, 4096))\na[:5] = 3\na.flush()")
    after = shell.user_ns["a"].cache.stats()
    assert result.success and "from the cell" in text and shell.user_ns["total"] > 0
    said = numbers(text)
    assert said["misses"] == after["misses"] - before["misses"] >= 1024
    assert said["ahead"] == after["ahead_used"] + after["prefetched_pages"] - before["ahead_used"] - before["prefetched_pages"] >= 200
    assert said["evicted"] == after["evicted_pages"] - before["evicted_pages"] > 0
    assert said["written"] == after["writeback_pages"] - before["writeback_pages"] >= 1
    assert said["limit"] == "1 MiB" and said["memory"].split()[1] in ("KiB", "MiB") and said["major"] >= 0
    assert float(said["seconds"]) >= 0
    bars, points = check(*figures)
    assert bars and min(y for _, y in points) == 0


def test_a_cell_without_caches_is_a_cell(shell):
    text, figures, result = ran(shell, "x = 5\nx + 1")
    assert result.success and shell.user_ns["x"] == 5 and "6" in text
    said = numbers(text)
    assert (said["misses"], said["written"]) == (0, 0)
    bars, _ = check(*figures)
    assert not bars


def test_a_cell_that_makes_and_drops_its_cache_is_told_of_too(shell, tmp_path):
    write(tmp_path / "a", noise(4 << 20, 61).tobytes())
    cell = f"""
def work():
    a = fastmap.memmap('a', mode='r', cache='1MiB')
    a.mapping.advise('random')
    return int(a[::{PAGE}].sum())
work()
"""
    text, figures, result = ran(shell, cell)
    assert result.success and numbers(text)["misses"] >= 1024
    check(*figures)


def test_a_cell_that_drops_a_cache_counts_nothing_backward(shell, tmp_path):
    write(tmp_path / "a", noise(4 << 20, 62).tobytes())
    shell.run_cell("a = fastmap.memmap('a', mode='r', cache='1MiB'); a.mapping.advise('random')")
    shell.run_cell(f"a[::{PAGE}].sum()")
    text, figures, result = ran(shell, "del a")
    said = numbers(text)
    assert all(value >= 0 for value in said.values() if isinstance(value, int)), said
    check(*figures)


def test_an_error_of_a_cell_is_shown_once_and_is_its_result(shell):
    text, figures, result = ran(shell, "y = 1\nprint('before')\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError) and not result.success
    assert shell.user_ns["y"] == 1 and "before" in text and LINE.search(text)
    assert text.count("ZeroDivisionError") <= 2, "the traceback is there twice"
    text, _, result = ran(shell, "this is no Python")
    assert not result.success


def test_the_line_of_an_error_is_shown(shell, tmp_path):
    text, _, result = ran(shell, "def broken(x):\n    return x / 0  # here\n\ny = 1\nbroken(y)  # and here")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"-> +3 .*return x / 0", text) and re.search(r"-> +6 .*broken\(y\)  # and here", text), text
    assert "_magic.py" not in text and LINE.search(text)


def test_a_cell_may_await(shell, tmp_path):
    write(tmp_path / "a", noise(1 << 20, 63).tobytes())
    cell = """
import asyncio
async def work():
    a = fastmap.memmap('a', mode='r', cache='64KiB')
    a.mapping.advise('random')
    await asyncio.sleep(0)
    return int(a[::4096].sum())
async with asyncio.Lock():
    total = await work()
await work()
"""
    text, figures, result = ran(shell, cell)
    assert result.success and result.result == shell.user_ns["total"] > 0
    assert numbers(text)["misses"] >= 512
    check(*figures)
    text, _, result = ran(shell, "await work()\nawait asyncio.sleep(0, 1 / 0)")
    assert isinstance(result.error_in_exec, ZeroDivisionError) and numbers(text)["misses"] >= 256


@pytest.fixture
def files(tmp_path):
    for name in "bcdef":
        write(tmp_path / name, noise(1 << 20, 64).tobytes())


def read(name):
    """A cell that misses each page of a file."""
    return f"{name} = fastmap.memmap('{name}', mode='r', cache='1MiB'); {name}.mapping.advise('random'); {name}[::4096].sum()"


@pytest.mark.parametrize("inner", [
    "%%fastmap\n{0}",
    "get_ipython().run_cell('%%fastmap\\n' + {0!r})",
    "get_ipython().run_cell_magic('fastmap', '', {0!r})",
    "%%time\n%%fastmap\n{0}",
])  # fmt: skip
def test_cells_in_cells_each_count_their_own(shell, files, inner):
    text, figures, result = ran(shell, inner.format(read("b")) + ("" if inner.startswith("%%") else "\n" + read("c")))
    found = [numbers(line) for line in text.splitlines() if LINE.search(line)]
    assert result.success and len(found) == len(figures) == 2, text
    misses = sorted(said["misses"] for said in found)
    assert misses == ([256, 256] if inner.startswith("%%") else [256, 512])
    assert all(value >= 0 for said in found for value in said.values() if isinstance(value, int)), found


def test_it_goes_with_other_magics_and_stays_out_of_other_cells(shell, files):
    for cell in "%%time\n" + read("b"), "%%capture said\n" + read("c"), "%time " + read("d"), "%pwd\n" + read("e"):
        text, figures, result = ran(shell, cell)
        assert result.success and numbers(text)["misses"] == 256 and len(figures) == 1
    result = shell.run_cell("%%capture said\n%%fastmap\n" + read("f"))
    assert result.success and numbers(shell.user_ns["said"].stdout)["misses"] == 256
    assert shell.run_cell("text = \'\'\'\n%%fastmap\n\'\'\'").success and shell.user_ns["text"] == "\n%%fastmap\n"
    text, _, result = ran(shell, "x = 5\nx")
    assert result.result == 5 and re.match(r"Out\[\d+\]: 5\n", text)
    manager = shell.input_transformer_manager
    assert [manager.check_complete(cell)[0] for cell in ("%%fastmap", "%%fastmap\nx = 1\n\n")] == ["incomplete", "complete"]


def test_in_a_kernel_cells_may_await_and_show_the_lines_of_errors(tmp_path, files):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path), env={**os.environ, "IPYTHONDIR": str(tmp_path)})
    try:

        def run(cell):
            said = []
            reply = client.execute_interactive(cell, timeout=60, output_hook=said.append)["content"]
            kinds = {kind: [it["content"] for it in said if it["msg_type"] == kind] for kind in ("stream", "error", "display_data")}
            text = "".join(content["text"] for content in kinds["stream"])
            return reply["status"], text, kinds["error"], [content["data"]["image/svg+xml"] for content in kinds["display_data"]]

        assert run("import asyncio, fastmap\n%load_ext fastmap\nloop = asyncio.get_running_loop()")[0] == "ok"
        cell = f"await asyncio.sleep(0.1)\nassert asyncio.get_running_loop() is loop\n{read('b')}"
        status, text, _, figures = run("%%fastmap\n" + cell)
        assert status == "ok" and numbers(text)["misses"] == 256
        check(*figures)
        status, text, errors, _ = run("%%fastmap\nawait asyncio.sleep(0)\n1 / 0  # here")
        assert status == "error" and LINE.search(text) and len(errors) == 1
        assert re.search(r"-> +3 .*# here", re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(errors[0]["traceback"])))
        assert run("import threading; print(threading.active_count(), fastmap._cache.watching)")[1].endswith(" []\n")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_its_watcher_ends_with_the_cell(shell):
    import threading

    before = threading.active_count()
    ran(shell, "sum(range(10**6))")
    ran(shell, "1 / 0")
    assert threading.active_count() == before


def test_the_magic_has_a_description(shell):
    magic = shell.magics_manager.magics["cell"]["fastmap"]
    assert "cell" in magic.__doc__
    assert fastmap.load_ipython_extension.__doc__
