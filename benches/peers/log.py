"""The rollout log beside pyarrow, DuckDB and Polars, in the same minutes on the same rows.

    .peers/bin/python benches/peers/log.py [--rows N] [--tokens T] [--analyze-rows N] [--rounds R] [--files STEP.parquet...]

Writing and reading: each file's rows, one thread each, processor time. tidegate starts from rollouts, and seals and syncs what it writes;
pyarrow starts from an Arrow table and ends with one. tidegate reads to columns, as arrow-rs gives them, and to rollouts. Sizes are of the whole files, pyarrow's without the
key-values of ours, which hold metrics.

Analysing: `tidegate analyze` beside the same aggregates by DuckDB and Polars on the same files, two threads each, wall time of the
whole process (start included for all). Not the same for all, each time in the peers' favour: mean log-probabilities of rollouts are taken
without the mask, completions of the longest and most surprising rollouts are not fetched, and no seal is checked.

Prints one JSON object a figure: name, tidegate, peer, ratio (tidegate / peer: below 1 is better), unit, runs; medians of alternating runs.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
THREADS = 2


def built(arguments, name):
    """The newest executable that cargo builds for a target."""
    command = ["cargo", *arguments, "--message-format=json"]
    out = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    found = [m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == name]
    return found[-1]


def figure(name, ours, theirs, unit, peer):
    a, b = statistics.median(ours), statistics.median(theirs)
    line = {"name": name, "tidegate": a, "peer": b, "peer_name": peer, "ratio": a / b, "unit": unit, "runs": len(ours)}
    print(json.dumps(line), flush=True)


# ---- writing and reading -------------------------------------------------------------------------------------------------------


def write_and_read(bench, file, label, rounds, place):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    table = pq.read_table(file, use_threads=False).replace_schema_metadata(None)
    copy, run = place / "pyarrow.parquet", place / "written"
    times = {key: [] for key in ["write", "write peer", "read", "columns", "read peer"]}
    # Once for a process that is warm; the bench does the same.
    pq.write_table(table, copy, compression="zstd")
    pq.read_table(copy, use_threads=False)
    for _ in range(rounds):
        said = json.loads(subprocess.run([bench, "write", file, run], check=True, stdout=subprocess.PIPE).stdout)
        assert said["rows"] == table.num_rows
        times["write"].append(said["ns"] / said["rows"])
        start = time.process_time_ns()
        pq.write_table(table, copy, compression="zstd")
        times["write peer"].append((time.process_time_ns() - start) / table.num_rows)
        again = json.loads(subprocess.run([bench, "read", said["file"]], check=True, stdout=subprocess.PIPE).stdout)
        times["read"].append(again["ns"] / again["rows"])
        times["columns"].append(again["columns_ns"] / again["rows"])
        start = time.process_time_ns()
        pq.read_table(copy, use_threads=False)
        times["read peer"].append((time.process_time_ns() - start) / table.num_rows)
    peer = f"pyarrow {pa.__version__}, zstd"
    sizes = [os.path.getsize(path) / table.num_rows for path in (said["file"], copy)]
    figure(f"log, {label}: size", sizes[:1], sizes[1:], "bytes/rollout", peer)
    figure(f"log, {label}: write", times["write"], times["write peer"], "processor ns/rollout", peer)
    figure(f"log, {label}: read to columns", times["columns"], times["read peer"], "processor ns/rollout", peer)
    figure(f"log, {label}: read to rollouts", times["read"], times["read peer"], "processor ns/rollout", peer)


# ---- analysing -----------------------------------------------------------------------------------------------------------------

# Of a rollout, what further aggregates need: small enough to be kept.
DUCKDB_ROWS = """
CREATE TEMP TABLE r AS SELECT step, status, "group", sample, prompt_id, task, stop, reward, prompt_text, len(tokens) AS n,
  admitted_ns, started_ns, finished_ns, trained_ns, list_min(version) <> list_max(version) AS mixed, list_avg(logp_behavior) AS logp
FROM read_parquet('{files}')"""
INTERVAL = "((step - {first}) * 12) // ({last} - {first} + 1)"
DUCKDB_AGGREGATES = {
    "statuses": "SELECT status, count(*) FROM r GROUP BY 1",
    "rewards": """SELECT avg(reward) FILTER (status = 'trained'), avg((reward >= 1)::int) FILTER (status = 'trained'),
        avg(reward), avg((reward >= 1)::int) FROM r""",
    "steps": f"""SELECT {INTERVAL} AS i, min(step), max(step), count(*), avg(reward), avg((reward >= 1)::int), avg(n),
        histogram(stop) FROM r WHERE status = 'trained' GROUP BY 1""",
    "times": """SELECT min(least(admitted_ns, started_ns)), max(greatest(finished_ns, trained_ns)), avg(started_ns - admitted_ns),
        avg(finished_ns - started_ns), avg(trained_ns - finished_ns) FILTER (trained_ns > 0), sum(n), count(*) FROM r""",
    "tasks": "SELECT task, count(*), avg(n), avg((reward >= 1)::int), avg(mixed::int) FROM r WHERE n > 0 GROUP BY 1",
    "prompts": """SELECT prompt_id, count(*) AS c, sum((reward >= 1)::int) AS s, any_value(prompt_text) FROM r
        WHERE reward IS NOT NULL GROUP BY 1 ORDER BY s / c DESC, c DESC, 1 LIMIT 5""",
    "longest": 'SELECT "group", sample, n FROM r ORDER BY n DESC LIMIT 3',
    "surprising": 'SELECT "group", sample, logp FROM r ORDER BY logp LIMIT 3',
    # Lags by interval and tenth of the response, distances and advantages, in one pass over the trained tokens.
    "tokens": f"""SELECT {INTERVAL} AS i, step - 1 - v AS lag, (p * 10) // n AS tenth, count(*), sum(w), sum(w * w), sum(b - c),
        sum(exp(c - b) - 1 - (c - b)), sum(a), sum(a * a), min(a), max(a), count(*) FILTER (a = 0)
      FROM (SELECT *, exp(greatest(least(c - b, 20), -20)) AS w FROM (
        SELECT step, len(version) AS n, unnest(version) AS v, unnest(mask) AS m, unnest(logp_behavior)::double AS b,
          unnest(logp_current)::double AS c, unnest(advantage)::double AS a, unnest(range(len(version))) AS p
        FROM read_parquet('{{files}}') WHERE status = 'trained'))
      WHERE m GROUP BY 1, 2, 3""",
}


def duckdb_analysis(files):
    import duckdb

    db = duckdb.connect()
    db.execute(f"SET threads = {THREADS}; SET preserve_insertion_order = false")
    db.execute(DUCKDB_ROWS.format(files=files))
    first, last = db.execute("SELECT min(step), max(step) FROM r").fetchone()
    found = {k: db.execute(q.format(files=files, first=first, last=last)).fetchall() for k, q in DUCKDB_AGGREGATES.items()}
    tokens = found["tokens"]
    return {
        "version": duckdb.__version__,
        "rollouts": sum(count for _, count in found["statuses"]),
        "tokens": sum(row[3] for row in tokens),
        "lag": sum(row[1] * row[3] for row in tokens) / sum(row[3] for row in tokens),
        "k3": sum(row[7] for row in tokens) / sum(row[3] for row in tokens),
        "reward": found["rewards"][0][0],
    }


def polars_analysis(files):
    import polars as pl

    log = pl.scan_parquet(files)
    col = pl.col
    rows = log.select(
        *["step", "status", "group", "sample", "prompt_id", "task", "stop", "reward", "prompt_text"],
        *["admitted_ns", "started_ns", "finished_ns", "trained_ns"],
        col("tokens").list.len().alias("n"),
        (col("version").list.min() != col("version").list.max()).alias("mixed"),
        col("logp_behavior").list.mean().alias("logp"),
    ).collect(engine="streaming")
    first, last = rows["step"].min(), rows["step"].max()
    interval = ((col("step") - first) * 12 // (last - first + 1)).alias("i")
    solved = (col("reward") >= 1).alias("solved")
    trained = rows.filter(col("status") == "trained")
    statuses = rows.group_by("status").len()
    rewards = trained.select(col("reward").mean(), solved.mean())
    rows.select(col("reward").mean(), solved.mean())
    trained.group_by(interval).agg(
        col("step").min().alias("from"), col("step").max().alias("to"), pl.len(), col("reward").mean(), solved.mean(), col("n").mean()
    )
    trained.group_by(interval, "stop").len()
    rows.select(
        pl.min_horizontal("admitted_ns", "started_ns").min().alias("first"),
        pl.max_horizontal("finished_ns", "trained_ns").max().alias("last"),
        (col("started_ns") - col("admitted_ns")).mean().alias("queued"),
        (col("finished_ns") - col("started_ns")).mean().alias("generating"),
        (col("trained_ns") - col("finished_ns")).filter(col("trained_ns") > 0).mean().alias("ready"),
        col("n").sum(),
    )
    rows.filter(col("n") > 0).group_by("task").agg(pl.len(), col("n").mean(), solved.mean(), col("mixed").mean())
    by_prompt = rows.filter(col("reward").is_not_null()).group_by("prompt_id")
    by_prompt.agg(pl.len().alias("c"), solved.sum(), col("prompt_text").first()).sort(col("solved") / col("c")).head(5)
    rows.select("group", "sample", "n").top_k(3, by="n")
    rows.select("group", "sample", "logp").bottom_k(3, by="logp")
    lists = ["version", "mask", "logp_behavior", "logp_current", "advantage", "p"]
    length = col("version").list.len()
    tokens = (
        log.filter(col("status") == "trained")
        .select("step", *lists[:-1], length.alias("n"), pl.int_ranges(0, length).alias("p"))
        .explode(*lists)
        .filter(col("mask"))
        .with_columns(d=(col("logp_current") - col("logp_behavior")).cast(pl.Float64))
        .with_columns(w=col("d").clip(-20, 20).exp())
        .group_by(interval, (col("step") - 1 - col("version")).alias("lag"), (col("p") * 10 // col("n")).alias("tenth"))
        .agg(
            pl.len(),
            col("w").sum(),
            (col("w") ** 2).sum().alias("squares"),
            (-col("d")).sum().alias("k1"),
            (col("d").exp() - 1 - col("d")).sum().alias("k3"),
            col("advantage").sum().alias("a"),
            (col("advantage") ** 2).sum().alias("a2"),
            col("advantage").min().alias("low"),
            col("advantage").max().alias("high"),
            (col("advantage") == 0).sum().alias("zero"),
        )
        .collect(engine="streaming")
    )
    count = tokens["len"].sum()
    return {
        "version": pl.__version__,
        "rollouts": int(statuses["len"].sum()),
        "tokens": int(count),
        "lag": (tokens["lag"] * tokens["len"]).sum() / count,
        "k3": tokens["k3"].sum() / count,
        "reward": rewards["reward"][0],
    }


def pinned():
    """All get as many processors as threads: `tidegate analyze` takes what there are."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


def measured(command, environment=()):
    """Seconds of a process from its start to its end, its greatest memory in GiB, and what it printed."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **dict(environment)}, preexec_fn=pinned)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{command} ended with status {child.returncode}")
    return time.monotonic() - start, usage.ru_maxrss / 2**20, out, usage.ru_utime + usage.ru_stime


def analyse(tidegate, run, rows, rounds):
    files = f"{run}/rollouts/*.parquet"
    this = [sys.executable, __file__]
    commands = {
        "tidegate": ([tidegate, "analyze", "--json", str(run)], {}),
        "duckdb": ([*this, "--analysis", "duckdb", files], {}),
        "polars": ([*this, "--analysis", "polars", files], {"POLARS_MAX_THREADS": str(THREADS)}),
    }
    seconds, memory, processor, said = ({name: [] for name in commands} for _ in range(4))
    for _ in range(rounds):
        for name, (command, environment) in commands.items():
            wall, most, out, cpu = measured(command, environment)
            seconds[name].append(wall)
            memory[name].append(most)
            processor[name].append(cpu)
            said[name] = json.loads(out)
    ours = said["tidegate"]["runs"][0]
    for name in ["duckdb", "polars"]:
        theirs = said[name]
        same = [
            (sum(ours["statuses"].values()), theirs["rollouts"]),
            (ours["off_policy"]["tokens"], theirs["tokens"]),
            (ours["lag"]["mean"], theirs["lag"]),
            (ours["off_policy"]["k3"], theirs["k3"]),
            (ours["reward"]["trained"], theirs["reward"]),
        ]
        for a, b in same:
            assert abs(a - b) <= 1e-4 * max(abs(a), abs(b)), f"{name} found {b}, tidegate {a}"
        peer = f"{name} {theirs['version']}"
        label = f"analyze, {rows:,} rollouts"
        figure(f"{label}: time, {name}", seconds["tidegate"], seconds[name], "s", peer)
        figure(f"{label}: processor time, {name}", processor["tidegate"], processor[name], "s", peer)
        figure(f"{label}: memory, {name}", memory["tidegate"], memory[name], "GiB", peer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_480, help="drawn rollouts that are written and read")
    parser.add_argument("--tokens", type=int, default=200, help="of a drawn rollout, on average")
    parser.add_argument("--analyze-rows", type=int, default=1_000_000, help="drawn rollouts that are analysed: 2 GB at 200 tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", nargs="*", default=[], help="files of real logs, written and read too")
    parser.add_argument("--place", help="folder for what is drawn (default: a temporary one)")
    parser.add_argument("--bench", help="the built bench (default: cargo builds it)")
    parser.add_argument("--tidegate", help="the built program (default: cargo builds it)")
    parser.add_argument("--analysis", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.analysis:
        which, files = options.analysis
        print(json.dumps({"duckdb": duckdb_analysis, "polars": polars_analysis}[which](files)))
        return
    bench = options.bench or built(["bench", "--bench", "log", "--no-run"], "log")
    tidegate = options.tidegate or built(["build", "--release"], "tidegate")
    place = pathlib.Path(tempfile.mkdtemp(dir=options.place, prefix="tidegate-log-"))
    try:
        if options.rows:
            for tokens in sorted({32, options.tokens}):
                run = place / f"drawn-{tokens}"
                subprocess.run([bench, "make", run, str(options.rows), str(tokens)], check=True, stdout=subprocess.DEVNULL)
                (file, *_) = sorted((run / "rollouts").glob("step-*.parquet"))
                write_and_read(bench, file, f"drawn rollouts of {tokens} tokens", options.rounds, place)
                shutil.rmtree(run)
        for file in options.files:
            write_and_read(bench, file, pathlib.Path(file).resolve().parents[1].name, options.rounds, place)
        if options.analyze_rows:
            run = place / "analyzed"
            make = [bench, "make", run, str(options.analyze_rows), str(options.tokens)]
            subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
            analyse(tidegate, run, options.analyze_rows, options.rounds)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
