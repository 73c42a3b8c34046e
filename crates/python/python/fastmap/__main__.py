"""``python -m fastmap run [OPTIONS] script.py``: a Python script under `fastmap run`; any other command of `fastmap` as it is."""

import os
import shutil
import sys
import sysconfig
from typing import List, NoReturn

# Of `fastmap run`, those that stand alone.
_FLAGS = {"--async-stores", "--override", "--risk-stores", "--help", "-h"}


def _command() -> str:
    """The command that was installed with this package, or else one on the PATH."""
    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    if os.name == "posix":
        folders.append(sysconfig.get_path("scripts", "posix_user"))
    for folder in folders:
        path = os.path.join(folder, "fastmap")
        if os.access(path, os.X_OK):
            return path
    path = shutil.which("fastmap")
    if path is None:
        sys.exit("fastmap: the command is not where pip puts commands, nor on the PATH: install the package again")
    return path


def _arguments(given: List[str]) -> List[str]:
    """Of the command `fastmap`: a script, -m or -c after `run` and its options is Python's."""
    if given[:1] != ["run"]:
        return given
    at = 1
    while at < len(given) and (given[at] == "-h" or given[at].startswith("--") and given[at] != "--"):
        at += 1 if given[at] in _FLAGS or "=" in given[at] else 2
    options, rest = given[1:at], given[at:]
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if not rest:
        return ["run", *options] if options else ["run", "--help"]
    return ["run", *options, "--", sys.executable, *rest]


def main() -> NoReturn:
    command = _command()
    os.execv(command, [command, *_arguments(sys.argv[1:])])


if __name__ == "__main__":
    main()
