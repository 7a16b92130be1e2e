#!/usr/bin/env python3
"""Writes the work that engines are given, so that all of them get the same: every draw is Python's random.Random with a seed.

  decode   requests: a prompt of random tokens, and how many tokens are to be sampled (uniform on 1..L; an end of sequence ends nothing)
  train    rollouts: a prompt and a response of random tokens, what the behavior policy is said to have given each, an advantage each
  sums     prompts 'a+b=' with their answers, JSON Lines, and the pattern whose group a completion is judged by
"""

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

# A completion's reward is 1 where what the group of the pattern finds is the answer, else 0: Python's and Rust's expressions agree on these.
PATTERNS = {"sum": r"\A\s*(\d+)", "digitsum": r"\A\s*(\S)", "first": r"\A\s*(\S)"}

FIRST_ID = 3  # the ids below are special tokens in the model that make_tiny.py makes


def vocabulary(model: str | Path) -> int:
    return int(json.loads((Path(model) / "config.json").read_text())["vocab_size"])


def decode(model: str | Path, requests: int, prompt: int, longest: int, seed: int = 0) -> dict[str, Any]:
    draw = random.Random(seed)
    vocab = vocabulary(model)
    counts = [draw.randint(1, longest) for _ in range(requests)]
    return {"requests": [{"prompt": ids(draw, prompt, vocab), "tokens": count} for count in counts]}


def train(model: str | Path, rollouts: int, prompt: int, longest: int, seed: int = 0) -> dict[str, Any]:
    draw = random.Random(seed)
    vocab = vocabulary(model)
    rows = []
    for _ in range(rollouts):
        count = draw.randint(1, longest)
        # About what random weights give, with some spread, so that importance weights have work to do.
        behavior = [min(0.0, -math.log(vocab) + draw.gauss(0.0, 0.1)) for _ in range(count)]
        advantage = [draw.gauss(0.0, 1.0)] * count
        rows.append({"prompt": ids(draw, prompt, vocab), "tokens": ids(draw, count, vocab), "logp_behavior": behavior, "advantage": advantage})
    return {"rollouts": rows}


def ids(draw: random.Random, count: int, vocab: int) -> list[int]:
    return [draw.randrange(FIRST_ID, vocab) for _ in range(count)]


def sums(answer: str, digits: int, messages: bool, prompts: int = 512, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(prompts):
        a, b = draw.randrange(10**digits), draw.randrange(10**digits)
        right = {"sum": str(a + b), "digitsum": str(sum(map(int, f"{a}{b}")) % 10), "first": str(a)[0]}[answer]
        text = f"{a}+{b}="
        rows.append({"prompt": [{"role": "user", "content": text}] if messages else text, "answer": right})
    return rows


def write(path: Path, work: dict[str, Any] | list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) for row in work] if isinstance(work, list) else [json.dumps(work)]
    path.write_text("\n".join(lines) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, count in (("decode", "requests"), ("train", "rollouts")):
        sub = kinds.add_parser(kind)
        sub.add_argument("model", help="model folder, for the size of its vocabulary")
        sub.add_argument("out", type=Path)
        sub.add_argument("-n", "--count", type=int, default=64, help=count)
        sub.add_argument("-P", "--prompt", type=int, default=16, help="tokens of a prompt")
        sub.add_argument("-L", "--longest", type=int, default=64, help="most tokens of a response")
    sub = kinds.add_parser("sums")
    sub.add_argument("out", type=Path)
    sub.add_argument("--answer", choices=PATTERNS, default="first")
    sub.add_argument("--digits", type=int, default=1, help="digits of a and b, at most")
    sub.add_argument("--messages", action="store_true", help="prompts are messages for the chat template")
    for sub in kinds.choices.values():
        sub.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.kind == "sums":
        work: Any = sums(args.answer, args.digits, args.messages, seed=args.seed)
    else:
        work = {"decode": decode, "train": train}[args.kind](args.model, args.count, args.prompt, args.longest, args.seed)
    print(json.dumps({"kind": args.kind, "out": str(write(args.out, work)), "seed": args.seed}))


if __name__ == "__main__":
    main()
