"""What a cell of a notebook did to its caches: ``%load_ext fastmap``, then ``%%fastmap`` as a cell's first line."""

import re
import resource
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import SVG, display

from . import _cache

_PAGE = 4096


def _counters(caches: List[_cache.Cache]) -> Dict[str, int]:
    """Sums over caches, with the kernel's own for this process."""
    names = ("misses", "ahead_used", "prefetched_pages", "evicted_pages", "writeback_pages", "resident_pages", "capacity")
    sums = dict.fromkeys(names, 0)
    for cache in caches:
        stats = cache.stats()
        for name in names:
            sums[name] += stats[name]
    sums["faults"] = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    return sums


def _size(bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if bytes < 1024:
            return f"{bytes:.4g} {unit}"
        bytes /= 1024
    return f"{bytes:.4g} TiB"


def text_of(before: Dict[str, int], after: Dict[str, int], seconds: float) -> str:
    """What happened between two readings."""
    done = {name: after[name] - before[name] for name in after}
    hits = done["ahead_used"] + done["prefetched_pages"]
    return (
        f"{seconds:.3g} s: {done['misses']} misses, {hits} pages read before they were touched, {done['evicted_pages']} evicted, "
        f"{done['writeback_pages']} written; {_size(after['resident_pages'] * _PAGE)} in memory of {_size(after['capacity'])}; "
        f"{done['faults']} major faults of the kernel"
    )


def plot_of(samples: List[Tuple[float, Dict[str, int]]]) -> str:
    """Memory (line) and misses (bars) over time, as SVG."""
    width, height = 480, 80
    begin, end = samples[0][0], max(samples[-1][0], samples[0][0] + 1e-9)
    most = max(max(counters["resident_pages"] for _, counters in samples), 1)
    missed = [after["misses"] - before["misses"] for (_, before), (_, after) in zip(samples, samples[1:])]
    worst = max(max(missed, default=0), 1)

    def across(moment: float) -> float:
        return width * (moment - begin) / (end - begin)

    bars = "".join(
        f'<rect x="{across(samples[i][0]):.1f}" width="{max(across(samples[i + 1][0]) - across(samples[i][0]), 0.5):.1f}" '
        f'y="{height - height * count / worst:.1f}" height="{height * count / worst:.1f}" fill="#bbb"/>'
        for i, count in enumerate(missed)
        if count
    )
    points = " ".join(
        f"{across(moment):.1f},{height - height * counters['resident_pages'] / most:.1f}" for moment, counters in samples
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 18}">{bars}'
        f'<polyline points="{points}" fill="none" stroke="#06c" stroke-width="1.5"/>'
        f'<text x="0" y="{height + 14}" font-size="11" font-family="sans-serif">memory, up to {_size(most * _PAGE)} (line); '
        f"misses, up to {worst} in {1000 * (end - begin) / max(len(missed), 1):.0f} ms (bars)</text></svg>"
    )


class _Measurement:
    """From now to the end of the cell that runs."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._caches = _cache.all_caches()
        _cache.watching.append(self._caches)
        self._samples = [self._sample()]
        # Cells that run: one may have others run.
        self._depth = 1
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        shell.events.register("pre_execute", self._deeper)
        shell.events.register("post_execute", self._ended)

    def _sample(self) -> Tuple[float, Dict[str, int]]:
        return time.perf_counter(), _counters(self._caches)

    def _watch(self) -> None:
        pause = 0.02
        while not self._over.wait(pause):
            self._samples.append(self._sample())
            if len(self._samples) > 400:
                # A long cell: half as many, twice as far apart.
                del self._samples[1::2]
                pause *= 2

    def _deeper(self) -> None:
        self._depth += 1

    def _ended(self) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        self._shell.events.unregister("pre_execute", self._deeper)
        self._shell.events.unregister("post_execute", self._ended)
        self._over.set()
        self._watcher.join()
        (begin, before), (end, after) = self._samples[0], self._sample()
        self._samples.append((end, after))
        _cache.watching[:] = [caches for caches in _cache.watching if caches is not self._caches]
        print(text_of(before, after, end - begin))
        display(SVG(plot_of(self._samples)))


@magics_class
class Magic(Magics):
    """The magic."""

    @line_cell_magic
    def fastmap(self, line: str, cell: Optional[str] = None) -> None:
        """Runs the cell; then says, of all caches, what was missed, read ahead, evicted and written, and plots memory and misses."""
        if cell is None:
            _Measurement(self.shell)
        else:
            # A program's call: in what is typed this has happened.
            self.shell.run_cell(f"%%fastmap {line}\n{cell}").raise_error()


def register(shell: Any) -> None:
    """Adds the magic. A cell that begins with it stays a cell of the shell's own, which awaits, shows results and finds lines of errors, and has a
    line more, which has it measured."""

    def transform(lines: List[str]) -> List[str]:
        if not re.match(r"%%fastmap(\s|$)", lines[0] if lines else ""):
            return lines
        rest = shell.transform_cell("".join(lines[1:]))
        return ["get_ipython().run_line_magic('fastmap', '')\n", *rest.splitlines(keepends=True)]

    # Not where a shell asks whether a cell is complete: those that begin with %% end with an empty line.
    transform.has_side_effects = True  # type: ignore[attr-defined]
    shell.register_magics(Magic)
    shell.input_transformers_cleanup.append(transform)
