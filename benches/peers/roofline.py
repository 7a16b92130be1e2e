#!/usr/bin/env python3
"""The least time that a piece of work can take on this machine: its matrix products alone, and the keys and values that it must read.

The shapes come from the model's config.json; the weights are random and each its own, so that they stream from memory as a model's do.

  decode   The schedule is played through: the requests go over --slots slots in their order, a slot that becomes free takes the next one, so
           at the end fewer and fewer run. A decode step costs the products of all linear layers at the number of rows that run then (timed at
           some numbers of rows, in between by interpolation), and the keys and values of the running sequences over the read rate of memory.
           `full_tok_s` is the products alone with all slots busy; `tok_s` has keys, values and the end; `with_prompts_tok_s` also the prompts' products.
  train    The products forward, and of the two gradients, at as many rows as there are tokens, prompts too; the output head's at those that
           are trained.

Two floors: `torch` times the products with torch, which lays bf16 weights out anew at each call; `machine` takes the larger of bytes of the
weights over their read rate and operations over the rate of a large product. No attention, norm, softmax, sampling or Python is in either.
Needs: torch.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import DTYPES, Others, median_time, pin, read_work, tree_cpu, wait_quiet
from machine import product_rate, read_rate

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class Shapes:
    """A decoder's linear layers, [out, in] each, and what one token leaves in the cache."""

    layer: list[tuple[int, int]]
    layers: int
    head: tuple[int, int]
    cache_values: int  # keys and values of a token, numbers

    @staticmethod
    def of(folder: str | Path) -> "Shapes":
        config = json.loads((Path(folder) / "config.json").read_text())
        width, heads, kv_heads = (config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
        size = config.get("head_dim") or width // heads
        inner, layers = config["intermediate_size"], config["num_hidden_layers"]
        attention = [(heads * size, width), (kv_heads * size, width), (kv_heads * size, width), (width, heads * size)]
        mlp = [(inner, width), (inner, width), (width, inner)]
        return Shapes(attention + mlp, layers, (config["vocab_size"], width), 2 * layers * kv_heads * size)

    def body(self) -> list[tuple[int, int]]:
        return self.layer * self.layers

    def weights(self, head: bool = True) -> int:
        shapes = self.body() + ([self.head] if head else [])
        return sum(out * into for out, into in shapes)


def running(requests: list[tuple[int, int]], slots: int) -> list[tuple[int, int]]:
    """(sequences that run, tokens in their caches) at each decode step, for requests of (prompt, response) tokens.

    >>> running([(1, 2), (1, 1), (5, 1)], 2)
    [(2, 2), (2, 7)]
    >>> running([(1, 3), (1, 1)], 2)
    [(2, 2), (1, 2), (1, 3)]
    """
    waiting = list(reversed(requests))
    slot: list[tuple[int, int]] = []  # (tokens in the cache, tokens to come)
    steps = []
    while waiting or slot:
        while waiting and len(slot) < slots:
            slot.append(waiting.pop())
        steps.append((len(slot), sum(cached for cached, _ in slot)))
        slot = [(cached + 1, left - 1) for cached, left in slot if left > 1]
    return steps


def between(known: dict[int, float], rows: float) -> float:
    """Linear between the nearest two that are known; in proportion above the largest.

    >>> between({1: 1.0, 4: 4.0, 8: 4.0}, 2), between({1: 1.0, 4: 4.0, 8: 4.0}, 6), between({1: 1.0, 8: 4.0}, 16)
    (2.0, 4.0, 8.0)
    """
    below = max((r for r in known if r <= rows), default=min(known))
    above = min((r for r in known if r >= rows), default=None)
    if above is None:
        return known[below] * rows / below
    if above == below:
        return known[below]
    return known[below] + (known[above] - known[below]) * (rows - below) / (above - below)


class Floors:
    """Times of a model's products here."""

    def __init__(self, torch: Any, shapes: Shapes, dtype: str):
        self.torch, self.shapes = torch, shapes
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        self.width = self.dtype.itemsize
        self.read = read_rate(torch, 256_000_000)
        self.read_weights = read_rate(torch, shapes.weights() * self.width)
        self.rate = product_rate(torch, self.dtype)

    def linears(self, rows: int, head: bool = True) -> float:
        """Seconds of all linear layers with `rows` rows, by torch."""
        if not hasattr(self, "made"):
            self.made = [self.torch.randn(shape).to(self.dtype) for shape in [*self.shapes.body(), self.shapes.head]]
        weights = self.made if head else self.made[:-1]
        inputs = {into: self.torch.randn(rows, into).to(self.dtype) for into in {w.shape[1] for w in weights}}

        def all_of_them() -> None:
            for weight in weights:
                self.torch.nn.functional.linear(inputs[weight.shape[1]], weight)

        return median_time(all_of_them)

    def decode(self, requests: list[tuple[int, int]], slots: int) -> dict[str, Any]:
        steps = running(requests, slots)
        timed = {rows: self.linears(rows) for rows in sorted({*(r for r in ROWS if r < slots), slots})}
        cache = sum(cached for _, cached in steps) * self.shapes.cache_values * self.width / self.read
        products = sum(between(timed, rows) for rows, _ in steps)
        prompt_rows = sum(prompt for prompt, _ in requests)
        prompts = self.linears(512, head=False) * prompt_rows / 512
        weights = self.shapes.weights()
        machine = sum(max(weights * self.width / self.read_weights, 2 * rows * weights / self.rate) for rows, _ in steps)
        tokens = sum(count for _, count in requests)
        return {
            "useful_tokens": tokens,
            "steps": len(steps),
            "mean_rows": round(tokens / len(steps), 2),
            "products_ms": {rows: round(1e3 * seconds, 3) for rows, seconds in timed.items()},
            "products_s": round(products, 4),
            "cache_s": round(cache, 4),
            "prompts_s": round(prompts, 4),
            "full_tok_s": round(slots / timed[slots], 1),
            "tok_s": round(tokens / (products + cache), 1),
            "with_prompts_tok_s": round(tokens / (products + cache + prompts), 1),
            "machine_tok_s": round(tokens / (machine + cache), 1),
        }

    def train(self, tokens: int, trained: int, most_rows: int = 2048) -> dict[str, Any]:
        """Of all `tokens` and those that are `trained`. `most_rows`: products are timed at no more; the head's at an eighth, so that its output stays small."""
        torch, total = self.torch, 0.0
        best = self.rate
        for (out, into), times in [*((shape, self.shapes.layers) for shape in self.shapes.layer), (self.shapes.head, 1)]:
            wanted = trained if (out, into) == self.shapes.head else tokens
            rows = min(wanted, most_rows // 8 if out > 16384 else most_rows)
            weight, x, dy = (torch.randn(shape).to(self.dtype) for shape in ((out, into), (rows, into), (rows, out)))
            products = (lambda: torch.nn.functional.linear(x, weight), lambda: dy @ weight, lambda: dy.t() @ x)
            seconds = [median_time(product) for product in products]
            best = max(best, 2 * rows * out * into / min(seconds))
            total += sum(seconds) * times * wanted / rows
        operations = 6 * (tokens * self.shapes.weights(head=False) + trained * self.shapes.head[0] * self.shapes.head[1])
        return {
            "processed_tokens": tokens,
            "products_s": round(total, 4),
            "gflop_s": round(operations / total / 1e9, 1),
            "tok_s": round(tokens / total, 1),
            "machine_tok_s": round(tokens / (operations / best), 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decode", "train"])
    parser.add_argument("model", help="model folder; only its config.json is read")
    parser.add_argument("work", help="what to do, as work.py writes it")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--wait-quiet", type=float, default=0, metavar="S", help="wait up to S seconds for an idle machine")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    pin(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    work = read_work(args.work)
    print(f"waited {wait_quiet(args.wait_quiet)} s for a quiet machine", file=sys.stderr)
    with Others(tree_cpu) as meanwhile:
        floors = Floors(torch, Shapes.of(args.model), args.dtype)
        if args.what == "decode":
            floor = floors.decode([(len(r["prompt"]), r["tokens"]) for r in work["requests"]], args.slots)
        else:
            trained = sum(len(r["tokens"]) for r in work["rollouts"])
            floor = floors.train(trained + sum(len(r["prompt"]) for r in work["rollouts"]), trained)
    rates = {"read_gb_s": floors.read, "read_weights_gb_s": floors.read_weights, "product_gflop_s": floors.rate}
    row = {"what": args.what, "dtype": args.dtype, "weights": floors.shapes.weights(), **{key: round(rate / 1e9, 1) for key, rate in rates.items()}}
    print(json.dumps({**row, **floor, "others_cores": [meanwhile.cores]}))


if __name__ == "__main__":
    main()
