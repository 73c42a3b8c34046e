"""``python -m fastmap``, and the command that the wheel installs."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import textwrap

import pytest
from helpers import noise, write

SCRIPT = """
    import os, sys
    import numpy as np
    a = np.memmap(sys.argv[1], mode="r+", shape=(1024, 4096))
    total = int(a.sum())
    a[:, 0] = 1
    a.flush()
    print(total, int(a[:, 0].sum()), *sys.argv[2:])
"""

OURS = """
    import sys
    import numpy as np
    import fastmap
    shadow = np.fromfile(sys.argv[1], "u1").reshape(1024, 4096)
    for cache in None, "128KiB":
        a = fastmap.memmap(sys.argv[1], mode="r+", shape=(1024, 4096), cache=cache)
        assert (a == shadow).all()
        rows = [5, 1000, 5]
        assert (fastmap.gather(a, rows) == shadow[rows]).all()
        a[7] = shadow[7] = 7
        a.flush()
        assert a.prefetch([5, 1023], wait=True) == 2
        with open(sys.argv[1] + ".copy", "wb", 0) as copy:
            # Under it system calls may be given memory, as without.
            assert cache or copy.write(a[5:600]) == 595 * 4096
        print(cache, a.mapping.engine)
        if not cache:
            theirs = np.memmap(sys.argv[1], mode="r+", shape=(1024, 4096))
            theirs[9] = shadow[9] = 9
            assert (a == shadow).all()
            a[11] = shadow[11] = 11
            assert (theirs == shadow).all()
            del theirs
        del a
    b = np.memmap(sys.argv[1] + "2", mode="w+", shape=(1024, 4096))
    b[:] = shadow
    c = fastmap.memmap(sys.argv[1], mode="r+", shape=(1024, 4096), cache="128KiB")
    c[13] = b[13] = shadow[13] = 13
    b.flush()
    c.flush()
    assert all((np.fromfile(sys.argv[1] + name, "u1").reshape(1024, 4096) == shadow).all() for name in ["", "2"])
"""


def run(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "fastmap", *map(str, arguments)], capture_output=True, text=True, timeout=30, **options)


def printed(*arguments, **options):
    done = run(*arguments, **options)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout.strip()


def misses(stats):
    """Of the statistics that the program left."""
    found = []

    def look(item):
        if isinstance(item, dict):
            for name, value in item.items():
                found.append(value) if name == "misses" else look(value)
        elif isinstance(item, list):
            for value in item:
                look(value)

    look(json.loads(stats.read_text()))
    return sum(found)


def script(tmp_path, code):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    return path


@pytest.fixture
def table(tmp_path):
    content = noise(4 << 20, 50)
    return write(tmp_path / "table", content.tobytes()), int(content.sum(dtype="u8"))


@pytest.mark.parametrize("options", [[], ["--cache", "1MiB"], ["--cache=1MiB"], ["--cache", "1MiB", "--"], ["--cache=1MiB", "--map", "*table*", "--async-stores", "--override"], ["--async-stores", "--cache", "1MiB"], ["--"]], ids=str)
def test_a_script_runs_as_it_is(tmp_path, table, options, monkeypatch):
    path, total = table
    # It stores to the table.
    monkeypatch.setenv("FASTMAP_OWN", str(path))
    stats = tmp_path / "stats.json"
    options = [f"--stats={stats}", *options]
    result = printed("run", *options, script(tmp_path, SCRIPT), path, "--cache", "-x", "a b", "--", "")
    assert result == f"{total} 1024 --cache -x a b --"
    assert (misses(stats) > 0) == any("1MiB" in option for option in options)
    assert path.read_bytes()[::4096] == b"\1" * 1024


@pytest.mark.parametrize("options", [[], ["--cache", "1MiB"]], ids=str)
def test_a_script_that_uses_fastmap_runs_the_same_and_leaves_nobody_behind(tmp_path, table, options):
    # Its keepers end, or reading what it says would not.
    path, _ = table
    lines = printed("run", *options, script(tmp_path, OURS), path).splitlines()
    # With a cache of the command's the preload library has all mappings.
    assert lines[1] == ("128KiB kernel" if options else "128KiB fastmap") and lines[0].startswith("None ")


def test_modules_commands_and_options_of_python_are_passed_on(tmp_path):
    (tmp_path / "module.py").write_text("import sys; print('module', sys.argv[1:], sys.flags.utf8_mode)")
    assert printed("run", "-m", "module", "--x", "-y", cwd=tmp_path) == "module ['--x', '-y'] 0"
    assert printed("run", "--cache", "1MiB", "-X", "utf8", "-m", "module", "z", cwd=tmp_path) == "module ['z'] 1"
    assert printed("run", "-c", "import sys; print(sys.argv)", "--cache", "5") == "['-c', '--cache', '5']"
    assert printed("run", "--cache=1MiB", "--", "-c", "print(3)") == "3"
    assert run("run", "-", input="print(7)").stdout == "7\n"


def test_the_interpreter_is_the_same_and_a_child_of_the_command():
    code = "import os, sys; print(sys.executable, sys.prefix, os.getppid())"
    with subprocess.Popen([sys.executable, "-m", "fastmap", "run", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.read().split() == [sys.executable, sys.prefix, str(process.pid)]


def test_the_exit_status_is_the_programs():
    for status in 0, 1, 7, 255:
        assert run("run", "-c", f"import sys; sys.exit({status})").returncode == status
    assert run("run", "--cache", "1MiB", "-c", "1 / 0").returncode == 1
    assert run("run", "-c", "import os; os.kill(os.getpid(), 15)").returncode == -signal.SIGTERM
    assert run("run", "missing.py").returncode == 2


def test_wrong_usage_says_so_and_what_to_do(tmp_path):
    for arguments in ["run", "--cache", "much", "-c", "1"], ["run", "--nothing", "-c", "1"], ["run", "--cache"], ["nothing"]:
        done = run(*arguments)
        assert done.returncode == 2 and "--help" in done.stderr + done.stdout or "size" in done.stderr.lower(), done
    done = run("run", "--nothing=5", "-c", "print('ran')")
    assert done.returncode == 2 and "ran" not in done.stdout
    for arguments in ["run"], ["run", "--help"], ["run", "-h"]:
        assert "Usage: fastmap run [OPTIONS]" in run(*arguments).stdout, arguments
    assert "Usage: fastmap" in (lambda done: done.stdout + done.stderr)(run())


def test_other_commands_are_the_commands_own():
    import fastmap

    assert printed("--version") == f"fastmap {fastmap.__version__}"
    assert "userfaultfd" in run("doctor").stdout
    assert "fastmap top" in printed("--help")


def test_the_command_is_installed_with_its_libraries(tmp_path, table):
    path, total = table
    command = os.path.join(sysconfig.get_path("scripts"), "fastmap")
    stats = tmp_path / "stats.json"
    arguments = [command, "run", "--risk-stores", "--own", path, "--cache", "1MiB", "--stats", stats, "--", sys.executable, script(tmp_path, SCRIPT), path]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stdout) == (0, f"{total} 1024\n"), done.stderr
    assert misses(stats) > 0


def test_without_the_command_it_says_what_to_do(tmp_path):
    code = """
        import os, sys
        import fastmap.__main__ as main
        main.os.access = lambda *_: False
        main.shutil.which = lambda *_: None
        sys.argv = ["fastmap", "run", "-c", "1"]
        main.main()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 1 and "install" in done.stderr
