"""What all runners share: arguments, threads, a quiet machine, memory, repeats. Imports nothing but Python's own library.

A runner does one piece of work with one engine: `RUNNER MODEL WORK --threads N --dtype D --repeats R`. It loads, warms up, does the
work R times, and prints one JSON line on stdout; all other talk goes to stderr. With --serve it prints a line when it is ready and
then does the work once for each line that it reads, so that two engines can take turns without loading again.
"""

import argparse
import glob
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

DTYPES = ("fp32", "bf16")


def runner_arguments(doc: str | None, dtypes: tuple[str, ...] = DTYPES) -> argparse.ArgumentParser:
    """The arguments of a runner; `doc` is the module's, for --help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="Hugging Face model folder")
    parser.add_argument("work", help="what to do, as work.py writes it")
    parser.add_argument("--threads", type=int, default=2, help="threads, and processors that the process may use (default 2)")
    parser.add_argument("--dtype", choices=dtypes, default="fp32")
    parser.add_argument("--repeats", type=int, default=3, help="how often the work is done (default 3)")
    parser.add_argument("--serve", action="store_true", help="do the work once for each line on stdin")
    parser.add_argument("--wait-quiet", type=float, default=0, metavar="S", help="wait up to S seconds for an idle machine before each repeat")
    parser.add_argument("--no-preload", action="store_true", help="do not preload libtcmalloc_minimal and libiomp5, where they are found")
    return parser


def prepare(args: argparse.Namespace, iomp: bool = False) -> TextIO:
    """To be called before torch is imported: threads, processors, allocator. Returns the real stdout, which nothing else writes to."""
    if not args.no_preload:
        preload(iomp)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    for name, value in (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_VERBOSITY", "error"), ("TOKENIZERS_PARALLELISM", "false")):
        os.environ.setdefault(name, value)
    pin(args.threads)
    real = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return real


def preload(iomp: bool) -> None:
    """Starts this program again with libtcmalloc_minimal (a system package) and, where asked, libiomp5 (of this environment) before all
    else, where they are found: vLLM's notes on CPUs advise both, and the first one spares all of them page faults."""
    if os.environ.get("PEER_PRELOADED") is not None:
        return
    found = sorted(glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4"))[:1]
    found += glob.glob(os.path.join(sys.prefix, "lib", "libiomp5.so")) if iomp else []
    os.environ["PEER_PRELOADED"] = ",".join(os.path.basename(path) for path in found)
    if found:
        os.environ["LD_PRELOAD"] = ":".join(found)
        os.execv(sys.executable, [sys.executable, *sys.argv])


def pin(threads: int) -> None:
    """Keeps this process and its children on the first processors that it may use, so that one thread is one core."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def read_work(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def serve(args: argparse.Namespace, out: TextIO, once: Callable[[], None], facts: Callable[[], dict[str, Any]], ready: dict[str, Any]) -> None:
    """Does the work: `once` is what is timed, `facts` tells about the last time it ran. `ready` holds what is known before."""

    def line(repeats: int) -> None:
        seconds, others = [], []
        reset_peak_rss()
        for _ in range(repeats):
            wait_quiet(args.wait_quiet)
            with Others(tree_cpu) as meanwhile:
                begin = time.perf_counter()
                once()
                seconds.append(time.perf_counter() - begin)
            others.append(meanwhile.cores)
        row = {**ready, "seconds": [round(s, 6) for s in seconds], "peak_rss_mb": peak_rss_mb(), "others_cores": others, **facts()}
        print(json.dumps(row), file=out, flush=True)

    if not args.serve:
        line(args.repeats)
        return
    print(json.dumps({"ready": True}), file=out, flush=True)
    for _ in sys.stdin:
        line(1)


def since_start() -> float:
    """Seconds since this process was started (it may have replaced itself since)."""
    with open("/proc/self/stat", encoding="ascii") as file:
        started = int(file.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return round(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 3)


def peak_rss_mb(pid: int | str = "self") -> float:
    """Most memory that a process has had resident, MiB: VmHWM, which unlike ru_maxrss is not inherited. 0 where it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            peak = next((line.split()[1] for line in file if line.startswith("VmHWM:")), "0")
    except OSError:
        return 0.0
    return round(int(peak) / 1024, 1)


def reset_peak_rss() -> None:
    """From here on the peak is that of what follows: the model and the work, not the loading."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        print("the peak of memory cannot be reset here; it includes the loading", file=sys.stderr)


class Others:
    """Processors that other processes used while a block ran, in cores: (busy time of the machine - own time) / wall time. Above about
    0.05 a timing is pessimistic: two threads that wait for each other on two cores lose far more than the share that is taken."""

    def __init__(self, own: Callable[[], float]):
        self.own = own
        self.cores = 0.0

    def __enter__(self) -> "Others":
        self.begin = (time.perf_counter(), machine_cpu(), self.own())
        return self

    def __exit__(self, *_: object) -> None:
        wall, busy, own = (end - begin for begin, end in zip(self.begin, (time.perf_counter(), machine_cpu(), self.own())))
        self.cores = round(max(0.0, busy - own) / max(wall, 1e-9), 3)


def machine_cpu() -> float:
    """Busy time of all processors, seconds: user, nice, system, interrupts."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:]]
    return sum(ticks[i] for i in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def tree_cpu() -> float:
    """Processor time of this process, of those that it started, and of theirs, seconds."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                words = file.read().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(words[1]), []).append(int(name))
        ticks[int(name)] = sum(int(word) for word in words[11:15])
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def waited_cpu() -> float:
    """Processor time of this process and of children that have ended, seconds; those that still run are others."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def wait_quiet(limit: float, busy: float = 0.1, window: float = 2.0) -> float:
    """Waits until others used less than `busy` cores for `window` seconds, at most `limit` seconds. Returns how long it waited."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < limit:
        with Others(waited_cpu) as meanwhile:
            time.sleep(window)
        if meanwhile.cores <= busy:
            break
    return round(time.perf_counter() - begin, 1)


def median_time(do: Callable[[], object], seconds: float = 0.4) -> float:
    """Median time of a call, seconds: one to warm up, then as many as fit into `seconds`, at least three."""
    do()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        begin = time.perf_counter()
        do()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def progress(**what: object) -> None:
    print(json.dumps(what), file=sys.stderr, flush=True)
