"""Does a running program keep within its budget? Looks at it until it ends.

Prints a line for each look: the cache's capacity, what `fastmap top` says is in memory, and what the kernel says is there of
memory registered with userfaultfd, all in bytes.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time


def started_by(pid):
    """The program, a child of `fastmap run`; the other one is its guard."""
    while True:
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            name = pathlib.Path(f"/proc/{child}/comm").read_text().strip()
            if not name.startswith("fastmap"):
                return int(child)
        time.sleep(0.001)


pid = started_by(int(sys.argv[1]))
process = pathlib.Path(f"/proc/{pid}")


def states():
    """Of its threads; workers of the kernel's (io_uring) aside."""
    stats = [stat.read_text() for stat in process.glob("task/*/stat")]
    return {re.search(r".*\) (\w)", stat)[1] for stat in stats if "(iou-" not in stat}


def kernels_word():
    os.kill(pid, signal.SIGSTOP)  # or pages come and go while they are counted
    try:
        deadline = time.monotonic() + 1
        while not states() <= {"T"} and time.monotonic() < deadline:
            time.sleep(0.001)
        mappings = re.findall(r"^Rss: +(\d+) kB$.*?^VmFlags:(.*)$", (process / "smaps").read_text(), re.M | re.S)
        return sum(int(resident) << 10 for resident, flags in mappings if {"um", "uw"} & set(flags.split()))
    finally:
        os.kill(pid, signal.SIGCONT)


try:
    while states() - {"Z", "X"}:
        top = [os.environ["FASTMAP"], "top", "--once", "--json", "--interval", "0.1", str(pid)]
        look = subprocess.run(top, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        programs = json.loads(look.stdout)["programs"] if look.returncode == 0 else []
        for cache in (cache for program in programs for cache in program["caches"]):
            print(cache["capacity_bytes"], cache["totals"]["resident_pages"] * 4096, kernels_word())
        time.sleep(0.1)
except OSError:
    pass  # it has ended
