"""The table of a comparison, as Markdown that also reads well on a terminal."""

import math
from typing import Any

HEAD = ("figure", "tidegate", "peer", "ratio", "target", "met", "floor", "of it")
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
NOTHING = "not yet run"

Line = dict[str, Any]


def markdown(lines: list[Line], machine: Line | None) -> str:
    cells = [HEAD, *(row(line) for line in lines)]
    widths = [max(len(cell[i]) for cell in cells) for i in range(len(HEAD))]
    texts = ["| " + " | ".join(text.ljust(width) for text, width in zip(cell, widths)) + " |" for cell in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    notes = [
        "",
        "Medians. `ratio` is tidegate over peer, for times peer over tidegate. `floor`: what the matrix products, keys and values alone would let",
        "through on this machine (a floor of time). \\*: others used more than 0.05 cores meanwhile. \\*\\*: the sides did not do the same work.",
    ]
    return "\n".join([*([about(machine), ""] if machine else []), texts[0], rule, *texts[1:], *notes])


def about(machine: Line) -> str:
    products = machine["product_gflop_s"]
    return (
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}: reads {machine['read_gb_s']['256 MB']} GB/s, copies"
        f" {machine['copy_gb_s']} GB/s, products fp32 {products['fp32']} and bf16 {products['bf16']} Gflop/s."
    )


def row(line: Line) -> tuple[str, ...]:
    """A line of compare.py; one of log.py has `name, tidegate, peer, ratio, unit` alone."""
    unit = line.get("unit", "")
    marks = ("*" if line.get("others_cores", 0.0) > 0.05 else "") + ("**" if not line.get("same_work", True) else "")
    title = line.get("figure") or line.get("name", "")
    peer, name = number(line.get("peer")), line.get("peer_name")
    met = line.get("met")
    return (
        title + marks.replace("*", "\\*"),
        NOTHING if line.get("tidegate") is None else f"{number(line['tidegate'])} {unit}".replace("never " + unit, "never"),
        "" if name is None and not peer else f"{peer or NOTHING} {f'({name})' if name else ''}".strip(),
        number(line.get("ratio"), "x"),
        target(line),
        "" if met is None else "yes" if met else "no",
        number(line.get("floor")),
        percent(line.get("share")),
    )


def target(line: Line) -> str:
    """What is aimed at, in the terms of what is judged."""
    least, most = line.get("at_least"), line.get("at_most")
    of = line.get("of")
    sign = {"share": percent, "value": lambda value: f"{number(value)} {line['unit']}"}.get(str(of), lambda value: number(value, "x"))
    parts = [f">= {sign(least)}" if least is not None else "", f"<= {sign(most)}" if most is not None else ""]
    return ", ".join(filter(None, parts)) + (" of the floor" if of == "share" else "")


def number(value: float | None, unit: str = "") -> str:
    """Three digits that count, and all that stand before the point.

    >>> number(12345.6), number(1.2345, "x"), number(0.0512), number(0.0), number(float("inf")), number(None)
    ('12,346', '1.23x', '0.0512', '0', 'never', '')
    """
    if value is None:
        return ""
    if math.isinf(value):
        return "never"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(digits, 0), 4)}f}{unit}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def measured_rows(page: str) -> set[str]:
    """The figures of a page's table that tidegate's side was measured of.

    >>> sorted(measured_rows("| figure | tidegate |\\n|---|---|\\n| a\\\\* | 1.5 s |\\n| b | not yet run |"))
    ['a']
    """
    rows = (line.strip("|").split("|") for line in page.splitlines() if line.startswith("|"))
    cells = ([cell.strip() for cell in row] for row in rows)
    return {row[0].rstrip("*\\") for row in cells if len(row) > 1 and row[0] != HEAD[0] and not row[0].startswith("-") and row[1] != NOTHING}


def written(page: str, text: str) -> str:
    """The page with the text between its marks."""
    head, mark, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"the page has no lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{text}\n{END}{tail}"
