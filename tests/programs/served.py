"""Did FastMap serve a program, within its budget? Reads the statistics that `fastmap run` left in a folder.

Prints how much data, cache and misses there were, or says on standard error what is wrong and exits with 1.
"""
import json
import pathlib
import sys

MIB = 1 << 20
folder = pathlib.Path(sys.argv[1])
data = max(int(line) for line in (folder / "data").read_text().split())
returns = folder / "returns"
expected = sum(map(int, returns.read_text().split())) if returns.exists() else 0
capacity = evicted = misses = kernel = 0
# A run is the program's own file and, with a process id behind the name, those of its children.
runs = {}
for path in sorted((folder / "stats").iterdir()):
    try:
        runs.setdefault(path.stem, []).append(json.loads(path.read_text()))
    except ValueError as error:
        sys.exit(f"statistics that are no JSON, {path.name}: {error}")
if not runs:
    sys.exit("fastmap run left no statistics")
for name, processes in runs.items():
    caches = [cache for process in processes for cache in process["caches"]]
    returned = sum(process["kernel"] for process in processes)
    if not sum(cache["misses"] for cache in caches) and not returned:
        sys.exit(f"one of its runs was not served: no misses in {processes}")
    for cache in caches:
        if cache["resident_pages"] * 4096 > cache["capacity_bytes"]:
            sys.exit(f"more in memory than the cache holds: {cache}")
        if cache["writeback_errors"]:
            sys.exit(f"write-back failed: {cache}")
        capacity = max(capacity, cache["capacity_bytes"])
        misses += cache["misses"]
        evicted += cache["evicted_pages"]
    kernel += returned
if not evicted:
    sys.exit("nothing was evicted: its data is not larger than the cache")
if not misses:
    sys.exit(f"none of its runs was served: {runs}")
if kernel > expected:
    sys.exit(f"{kernel} of its mappings were left to the kernel, not {expected}: {runs}")
looks = 0
if (folder / "watched").exists():
    for line in (folder / "watched").read_text().splitlines():
        budget, told, found = map(int, line.split())
        if max(told, found) > budget:
            sys.exit(f"of {budget} bytes of cache it had {told} in use while it ran, {found} by the kernel's word")
        looks += found > 0
    if not looks:
        sys.exit("it was to be watched, and nothing of it was seen in memory")
seen = f", within budget at {looks} looks" if looks else ""
returned = f", {kernel} mappings returned to the kernel" if kernel else ""
print(f"{data} MiB, cache {capacity / MIB:.1f} MiB, {misses} misses, {evicted} evicted{seen}{returned}")
