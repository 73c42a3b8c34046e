"""What a cell of a notebook did to its caches: ``%load_ext fastmap``, then ``%%fastmap`` as a cell's first line."""

import ast
import resource
import threading
import time
from typing import Dict, List, Tuple

from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.display import SVG, display

from . import _cache

_PAGE = 4096


def _counters() -> Dict[str, int]:
    """Sums over all caches, with the kernel's own for this process."""
    names = ("misses", "ahead_used", "prefetched_pages", "evicted_pages", "writeback_pages", "resident_pages", "capacity")
    sums = dict.fromkeys(names, 0)
    for cache in _cache.watched or []:
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


@magics_class
class Magic(Magics):
    """The cell magic."""

    @cell_magic
    def fastmap(self, line: str, cell: str) -> None:
        """Runs the cell; then says, of all caches, what was missed, read ahead, evicted and written, and plots memory and misses."""
        _cache.watched = _cache.all_caches()
        try:
            self._run(cell)
        finally:
            _cache.watched = None

    def _run(self, cell: str) -> None:
        samples = [(time.perf_counter(), _counters())]
        over = threading.Event()

        def watch() -> None:
            pause = 0.02
            while not over.wait(pause):
                samples.append((time.perf_counter(), _counters()))
                if len(samples) > 400:
                    # A long cell: half as many, twice as far apart.
                    del samples[1::2]
                    pause *= 2

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            self._execute(cell)
        finally:
            over.set()
            watcher.join()
            samples.append((time.perf_counter(), _counters()))
            print(text_of(samples[0][1], samples[-1][1], samples[-1][0] - samples[0][0]))
            display(SVG(plot_of(samples)))

    def _execute(self, cell: str) -> None:
        """In the notebook's names; what it raises is the magic's to raise, and its last expression is shown."""
        shell = self.shell
        tree = shell.compile.ast_parse(shell.transform_cell(cell))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(shell.compile(tree, "<cell>", "exec"), shell.user_ns)
        if last is not None and not cell.rstrip().endswith(";"):
            shell.displayhook(eval(shell.compile(ast.Expression(last.value), "<cell>", "eval"), shell.user_ns))
        elif last is not None:
            eval(shell.compile(ast.Expression(last.value), "<cell>", "eval"), shell.user_ns)
