#!/usr/bin/env python3
"""Runs tidegate and its peers in turn on the same work, and prints one table.

Each row is measured by itself: every side does the work once, then again, three times at least (A B A B ..), each time when the machine is
quiet, so that all saw the same minutes. Medians are compared. A row that is done is kept in a file (JSON Lines) and is skipped the next time,
so that this can be broken off; the table is of what is in the file. Run it by `make bench-peers`; an hour or so.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import progress, wait_quiet
from rows import Figure, Row, reached, rows
from sides import HERE, PYTHONS, ROOT, Facts, Missing, Programs, Side, check_python, last_json
from table import markdown, measured_rows, written

Runs = dict[str, list[Facts]]


def measure(row: Row, programs: Programs, quiet: float, repeats: int) -> Facts:
    """All runs of a row's sides, its floor, what is not there, and what tidegate does not know yet."""
    missing: list[str] = []
    refused: dict[str, str] = {}
    runs: Runs = {}
    sides: list[Side] = []
    try:
        for make in row.sides(programs):
            try:
                sides.append(make())
            except Missing as why:
                missing.append(str(why))
        for turn in range(repeats):
            for side in list(sides):
                waited = wait_quiet(quiet)
                try:
                    facts = side.run()
                except Missing as why:
                    refused[side.name] = str(why)
                    sides.remove(side)
                    side.close()
                    continue
                runs.setdefault(side.name, []).append(facts)
                progress(row=row.name, turn=turn + 1, side=side.name, waited_s=waited, **{key: facts.get(key) for key in ("rate", "peak_rss_mb", "others_cores")})
        wait_quiet(quiet)
        floor = roofline(row.floor()) if row.floor else None
    finally:
        for side in sides:
            side.close()
    notes = {"missing": missing, "refused": refused, "differs": differs(row, runs)}
    return {"row": row.name, "when": now(), "runs": runs, "floor": floor, **notes}


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M")


def roofline(arguments: list[str]) -> Facts:
    done = subprocess.run([str(PYTHONS["peers"]), str(HERE / "roofline.py"), *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return last_json(done.stdout)


def differs(row: Row, runs: Runs) -> list[str]:
    """Where the sides did not do the same."""
    found = []
    for fact, most, relation in row.same:
        medians = {name: value for name, side in runs.items() if (value := median(side, fact)) is not None}
        if len(medians) < 2:
            continue
        first = next(iter(medians.values()))
        by = max(abs(value - first) for value in medians.values()) / (abs(first) if relation == "share" else 1.0)
        if not by <= most:
            found.append(f"{fact} differs by {by:.3g}, more than {most:g}: {medians}")
    return found


def median(runs: list[Facts], fact: str) -> float | None:
    if fact.startswith("reached"):
        # A run that never got there is later than all that did.
        values = [reached(run.get("curve", [])).get(fact, math.inf) for run in runs]
    else:
        values = [run[fact] for run in runs if run.get(fact) is not None]
    return statistics.median(values) if values else None


def line(row: Row, figure: Figure, done: Facts | None) -> Facts:
    """A line of the table; what was not measured is None."""
    runs: Runs = done["runs"] if done else {}
    mine = median(runs.get(figure.ours, []), figure.fact)
    theirs = median(runs.get(figure.peer, []), figure.fact) if figure.peer else None
    floor = (done or {}).get("floor") if figure.fact == "rate" else None
    ceiling = floor["tok_s"] if floor else None
    share = mine / ceiling if mine is not None and ceiling else None
    judged: dict[str, float | None] = {"ratio": over(mine, theirs), "sooner": over(theirs, mine), "value": mine, "share": share}
    value = judged[figure.of]
    bounds = (figure.at_least is None or (value or 0.0) >= figure.at_least) and (figure.at_most is None or (value or 0.0) <= figure.at_most)
    aimed = figure.at_least is not None or figure.at_most is not None
    same = not differs(row, runs)
    shared = max((run.get("others_cores") or 0.0 for side in (figure.ours, figure.peer) for run in runs.get(side or "", [])), default=0.0)
    return {
        "figure": figure.title,
        "unit": figure.unit,
        "tidegate": mine,
        "peer": theirs,
        "peer_name": figure.peer,
        "of": figure.of,
        "ratio": value if figure.of in ("ratio", "sooner") else None,
        "at_least": figure.at_least,
        "at_most": figure.at_most,
        "met": bounds if aimed and value is not None and same else None,
        "floor": ceiling,
        "share": share,
        "others_cores": shared,
        "same_work": same,
    }


def over(a: float | None, b: float | None) -> float | None:
    """Nothing where a side was not measured, or neither ever got there."""
    return a / b if a is not None and b and not (math.isinf(a) and math.isinf(b)) else None


def read(path: Path) -> dict[str, Facts]:
    """The newest of each row."""
    if not path.exists():
        return {}
    return {row["row"]: row for row in map(json.loads, path.read_text().splitlines())}


def log_lines() -> list[Facts] | None:
    """What log.py tells, a line of the table each; tidegate is to take no more of anything than the peer."""
    script = HERE / "log.py"
    if not script.exists():
        return None
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    return [{"of": "ratio", "at_most": 1.0, "met": line["ratio"] <= 1.0, **line} if line.get("ratio") is not None else line for line in lines]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="only these, separated by commas; a name's beginning is enough (default: all)")
    parser.add_argument("--again", action="store_true", help="measure them although they are in the file")
    parser.add_argument("--table", action="store_true", help="measure nothing: print the table of what is in the file")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and end")
    parser.add_argument("--repeats", type=int, help="turns of each side (default: the row's own, 3 or 5)")
    parser.add_argument("--wait-quiet", type=float, default=60.0, metavar="S", help="before each turn wait up to S seconds for an idle machine (default 60)")
    parser.add_argument("--file", type=Path, default=ROOT / ".peers-rows.jsonl", help="where finished rows are kept (default .peers-rows.jsonl)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also put the table between the marks of this page (docs/performance.md has them)")
    parser.add_argument("--forget", action="store_true", help="let --write replace figures of the page that are not in the file of rows")
    parser.add_argument("--engine", type=Path, help="program of `cargo bench --bench engine` (default: built)")
    parser.add_argument("--tidegate", type=Path, help="program of tidegate (default: built)")
    return parser.parse_args()


def wanted(args: argparse.Namespace, names: list[str]) -> list[str]:
    if not args.rows:
        return names
    beginnings = args.rows.split(",")
    unknown = [b for b in beginnings if not any(name.startswith(b) for name in names)]
    if unknown:
        raise SystemExit(f"--rows {unknown[0]}: no such row; there are {', '.join(names)}")
    return [name for name in names if name.startswith(tuple(beginnings))]


def main() -> None:
    args = parse()
    all_rows = {row.name: row for row in rows()}
    names = ["machine", *all_rows, "log"]
    if args.list:
        print("\n".join(names))
        return
    done = read(args.file)
    if not args.table:
        check_python()
        programs = Programs(args.tidegate.resolve(), args.engine.resolve()) if args.tidegate and args.engine else Programs.build()
        for name in wanted(args, names):
            if name in done and not done[name].get("refused") and not args.again:
                progress(row=name, kept=done[name]["when"])
                continue
            record = measured(name, all_rows, programs, args)
            if record is not None:
                done[name] = record
                with args.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    lines = [line(row, figure, done.get(row.name)) for row in all_rows.values() for figure in row.figures]
    lines += done.get("log", {}).get("lines", [])
    text = markdown(lines, done.get("machine", {}).get("machine"))
    print(text)
    if args.write:
        page = args.write.read_text()
        new = written(page, text)
        lost = measured_rows(page) - measured_rows(new)
        if lost and not args.forget:
            raise SystemExit(f"{args.write} has figures that {args.file} has not: {'; '.join(sorted(lost))}. Measure them first, or --forget them")
        args.write.write_text(new)


def measured(name: str, all_rows: dict[str, Row], programs: Programs, args: argparse.Namespace) -> dict[str, Any] | None:
    """None where it cannot be measured now; it is tried again the next time."""
    if name == "machine":
        out = subprocess.run([sys.executable, str(HERE / "machine.py"), "--wait-quiet", str(args.wait_quiet)], check=True, stdout=subprocess.PIPE, text=True).stdout
        return {"row": name, "when": now(), "machine": last_json(out)}
    if name == "log":
        lines = log_lines()
        return None if lines is None else {"row": name, "when": now(), "lines": lines}
    try:
        record = measure(all_rows[name], programs, args.wait_quiet, args.repeats or all_rows[name].repeats)
    except (Missing, RuntimeError, OSError) as why:
        progress(row=name, failed=str(why))
        return None
    for why in [*record["missing"], *record["refused"].values(), *record["differs"]]:
        progress(row=name, note=why)
    return record if record["runs"] else None


if __name__ == "__main__":
    main()
