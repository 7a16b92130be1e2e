"""The two sides of a comparison: what each is started with, and what one run of it gave.

A run gives a table of facts; `rate` (a second), `peak_rss_mb` and `others_cores` are in all of them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from common import Others, peak_rss_mb, pin, waited_cpu

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PYTHONS = {"peers": ROOT / ".peers/bin/python", "vllm": ROOT / ".peers-vllm/bin/python"}

Facts = dict[str, Any]


class Missing(Exception):
    """A side that this machine or this version does not have; its figures stay empty."""


class Side(Protocol):
    name: str

    def run(self) -> Facts: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Programs:
    """Ours, built with optimization."""

    tidegate: Path
    engine: Path

    @staticmethod
    def build() -> "Programs":
        found: dict[str, Path] = {}
        for what in (["build", "--release", "--bin", "tidegate"], ["bench", "--no-run", "--bench", "engine"]):
            lines = subprocess.run(["cargo", *what, "--message-format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
            for message in map(json.loads, filter(lambda line: line.startswith("{"), lines.splitlines())):
                if message.get("executable"):
                    found[message["target"]["name"]] = Path(message["executable"])
        return Programs(found["tidegate"], found["engine"])


def run_once(command: list[str], threads: int) -> tuple[str, Facts]:
    """Runs a program on the first `threads` processors. Returns its stdout, and its time, memory and company."""
    peak = 0.0
    with tempfile.TemporaryFile("w+") as talk, Others(waited_cpu) as meanwhile:
        begin = time.perf_counter()
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=talk, text=True, preexec_fn=lambda: pin(threads)
        ) as process:
            while True:
                peak = max(peak, peak_rss_mb(process.pid))
                try:
                    out, _ = process.communicate(timeout=0.02)
                    break
                except subprocess.TimeoutExpired:
                    continue
        seconds = time.perf_counter() - begin
        if process.returncode != 0:
            talk.seek(0)
            raise (Missing if process.returncode == 2 else RuntimeError)(f"{' '.join(command)}: exit code {process.returncode}: {talk.read()[-2000:]}")
    return out, {"wall_s": round(seconds, 4), "peak_rss_mb": peak, "others_cores": meanwhile.cores}


def last_json(text: str) -> Facts:
    return json.loads(next(line for line in reversed(text.splitlines()) if line.startswith("{")))


def rated(facts: Facts, tokens: str) -> Facts:
    """One run's facts of a runner's line, which may tell of several: the last one counts."""
    seconds = facts["seconds"][-1]
    others = {"others_cores": facts["others_cores"][-1]} if "others_cores" in facts else {}
    return {**facts, **others, "seconds": seconds, "rate": round(facts[tokens] / seconds, 3)}


def python(environment: str) -> str:
    path = PYTHONS[environment]
    if not path.exists():
        raise Missing(f"there is no {path.relative_to(ROOT)}: make {path.parts[-3]}")
    return str(path)


class Resident:
    """A peer's runner that loads once and then waits for its turns."""

    def __init__(self, name: str, environment: str, script: str, arguments: list[str], tokens: str = "useful_tokens"):
        self.name, self.tokens = name, tokens
        command = [python(environment), str(HERE / script), *arguments, "--serve"]
        self.talk = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.talk, text=True)
        self.read()

    def read(self) -> Facts:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.talk.seek(0)
            raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}: {self.talk.read()[-2000:]}")
        return json.loads(line)

    def run(self) -> Facts:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return rated(self.read(), self.tokens)

    def close(self) -> None:
        self.process.communicate()
        self.talk.close()


class Once:
    """A program that is started for each run. `read` makes facts of what it wrote."""

    def __init__(self, name: str, command: Callable[[int], list[str]], read: Callable[[str], Facts], threads: int = 2):
        self.name, self.command, self.read, self.threads, self.runs = name, command, read, threads, 0

    def run(self) -> Facts:
        out, measured = run_once(self.command(self.runs), self.threads)
        self.runs += 1
        return {**measured, **self.read(out)}

    def close(self) -> None:
        pass


class Run:
    """`tidegate run`: the work is all steps, from the first admission to the end of the last one. `keys` gives the specification of each
    turn, whole or, where there is a `base`, what differs from that file."""

    def __init__(self, name: str, program: Path, keys: Callable[[int], Facts], base: Path | None = None, threads: int = 2):
        self.name, self.program, self.keys, self.base, self.threads, self.runs = name, program, keys, base, threads, 0

    def run(self) -> Facts:
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            run, path = Path(folder) / "run", Path(folder) / "spec.toml"
            keys = {**self.keys(self.runs), "output": str(run)}
            self.runs += 1
            path.write_text(as_toml({} if self.base else keys))
            sets = [word for line in as_toml(keys).splitlines() for word in ("--set", line)] if self.base else []
            out, measured = run_once([str(self.program), "run", str(self.base or path), *sets, "--json"], self.threads)
            return {**measured, **told(run, last_json(out))}

    def close(self) -> None:
        pass


def as_toml(keys: Facts) -> str:
    """A TOML file of dotted keys; texts, numbers, booleans and lists of them look in TOML as they do in JSON."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def told(run: Path, summary: Facts) -> Facts:
    """What a run's own log says of it."""
    import pyarrow.dataset
    import pyarrow.parquet

    metrics = pyarrow.parquet.read_table(run / "metrics.parquet").to_pydict()
    admitted = pyarrow.dataset.dataset(run / "rollouts").to_table(columns=["admitted_ns"])["admitted_ns"].to_pylist()
    begun = min(ns for ns in admitted if ns)
    ends = [(ns - begun) / 1e9 for ns in metrics["finished_ns"]]
    facts = {
        "steps": len(ends),
        "samples": summary["trained_rollouts"],
        "useful_tokens": summary["generated_tokens"],
        "train_s": round(ends[-1], 4),
        "lag_mean": summary["lag_mean"],
        "curve": [[round(end, 3), round(reward, 4)] for end, reward in zip(ends, metrics["reward"])],
        "grad_norm": metrics["grad_norm"][:1],
    }
    return {**facts, **of_samples(facts)}


def of_samples(facts: Facts) -> Facts:
    """Of a run from end to end."""
    return {"rate": round(facts["samples"] / facts["train_s"], 3), "tokens_a_sample": round(facts["useful_tokens"] / facts["samples"], 2)}


def trl_facts(out: str) -> Facts:
    facts = last_json(out)
    return {**facts, **of_samples(facts), "others_cores": facts["others_cores"][-1]}


def runner_facts(out: str, tokens: str) -> Facts:
    return rated(last_json(out), tokens)


def have(folder: str) -> Path:
    """A model's folder under .peers-models."""
    path = ROOT / ".peers-models" / folder
    if not (path / "config.json").exists():
        raise Missing(f"there is no {path.relative_to(ROOT)}: make .peers-models/{folder}")
    return path


def scratch() -> Path:
    """Where work files go."""
    path = ROOT / "target" / "peers"
    path.mkdir(parents=True, exist_ok=True)
    return path


def check_python() -> None:
    if shutil.which("cargo") is None or os.path.realpath(sys.prefix) != os.path.realpath(ROOT / ".peers"):
        raise SystemExit("run this by `make bench-peers`: it needs cargo, and the Python of .peers")
