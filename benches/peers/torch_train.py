#!/usr/bin/env python3
"""One step of policy gradient in plain PyTorch on a Hugging Face model, as people write it.

Forward, log-probabilities of the response, loss = -min(cap, exp(current - behavior)) [detached] * advantage * current, added up over tokens
and averaged over rollouts, backward, clipping at norm 1, AdamW. Micro-batches add up to one step. Ways to lay the sequences out:

  padded   --micro sequences, padded on the right; logits of the responses' span only, as TRL does
  sorted   the same, sorted by length first
  packed   end to end in rows of at most --pack-tokens, with positions that begin again (a block-diagonal mask); logits of exactly the
           responses' positions
  best     whichever of the three is fastest here, which is found out before the work is timed

bf16 has weights, gradients and the optimizer's state in bf16; amp has all of them in fp32 and computes under autocast to bf16. `useful_tokens`
are the responses', `processed_tokens` prompts and responses, padding excluded. Loss and norm are those of the first step. Needs: torch,
transformers.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from common import DTYPES, prepare, progress, read_work, runner_arguments, serve

MODES = ("padded", "sorted", "packed")


@dataclass
class Step:
    """The model and how a micro-batch becomes a gradient; all are torch's."""

    torch: Any
    model: Any
    cap: float
    cast: Callable[[], Any]
    rollouts: int

    def loss(self, logits: Any, targets: Any, behavior: Any, advantage: Any, mask: Any) -> float:
        """Adds a micro-batch's part of the gradient; returns its part of the loss."""
        logits = logits.float()
        current = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
        weight = (current.detach() - behavior).exp().clamp(max=self.cap)
        loss = (-weight * advantage * current * mask).sum() / self.rollouts
        loss.backward()
        return float(loss.detach())

    def padded(self, batches: list[tuple[Any, ...]]) -> float:
        total = 0.0
        for ids, attention, mask, behavior, advantage in batches:
            span = mask.shape[1]
            with self.cast():
                logits = self.model(input_ids=ids, attention_mask=attention, logits_to_keep=span + 1).logits[:, :-1]
            total += self.loss(logits, ids[:, -span:], behavior, advantage, mask)
        return total

    def packed(self, rows: list[tuple[Any, ...]]) -> float:
        total = 0.0
        for ids, positions, chosen, targets, behavior, advantage in rows:
            with self.cast():
                hidden = self.model.model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state[0, chosen]
                logits = self.model.lm_head(hidden)
            total += self.loss(logits, targets, behavior, advantage, 1.0)
        return total


def padded_batches(torch: Any, rollouts: list[dict[str, Any]], micro: int) -> list[tuple[Any, ...]]:
    """Prompts all have one length, so what is padded is the responses' span."""
    batches = []
    for begin in range(0, len(rollouts), micro):
        part = rollouts[begin : begin + micro]
        prompt, span = len(part[0]["prompt"]), max(len(rollout["tokens"]) for rollout in part)
        ids = torch.zeros(len(part), prompt + span, dtype=torch.long)
        attention = torch.zeros_like(ids)
        mask, behavior, advantage = (torch.zeros(len(part), span) for _ in range(3))
        for i, rollout in enumerate(part):
            count = len(rollout["tokens"])
            ids[i, : prompt + count] = torch.tensor(rollout["prompt"] + rollout["tokens"])
            attention[i, : prompt + count] = 1
            mask[i, :count] = 1
            behavior[i, :count] = torch.tensor(rollout["logp_behavior"])
            advantage[i, :count] = torch.tensor(rollout["advantage"])
        batches.append((ids, attention, mask, behavior, advantage))
    return batches


def packed_rows(torch: Any, rollouts: list[dict[str, Any]], most: int) -> list[tuple[Any, ...]]:
    """First fit, longest first."""
    rows: list[list[dict[str, Any]]] = []
    room: list[int] = []
    for rollout in sorted(rollouts, key=lambda rollout: -len(rollout["tokens"])):
        size = len(rollout["prompt"]) + len(rollout["tokens"])
        row = next((i for i, left in enumerate(room) if left >= size), None)
        if row is None:
            row = len(rows)
            rows.append([])
            room.append(max(most, size))
        rows[row].append(rollout)
        room[row] -= size
    batches = []
    for part in rows:
        ids: list[int] = []
        positions: list[int] = []
        chosen: list[int] = []
        for rollout in part:
            sequence = rollout["prompt"] + rollout["tokens"]
            chosen += range(len(ids) + len(rollout["prompt"]) - 1, len(ids) + len(sequence) - 1)
            ids += sequence
            positions += range(len(sequence))
        flat = {key: torch.tensor([x for rollout in part for x in rollout[key]]) for key in ("tokens", "logp_behavior", "advantage")}
        batches.append((torch.tensor([ids]), torch.tensor([positions]), torch.tensor(chosen), *flat.values()))
    return batches


def parse() -> argparse.Namespace:
    parser = runner_arguments(__doc__, dtypes=(*DTYPES, "amp"))
    parser.add_argument("--mode", choices=(*MODES, "best"), default="best")
    parser.add_argument("--micro", type=int, default=64, help="sequences of a padded micro-batch (default 64)")
    parser.add_argument("--pack-tokens", type=int, default=512, help="most tokens of a packed row (default 512)")
    parser.add_argument("--cap", type=float, default=5.0, help="bound of the importance weight (default 5)")
    parser.add_argument("--lr", type=float, default=1e-6)
    return parser.parse_args()


def main() -> None:
    args = parse()
    out = prepare(args)
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa").train()
    model.config.use_cache = False
    rollouts = read_work(args.work)["rollouts"]
    trained = sum(len(rollout["tokens"]) for rollout in rollouts)
    cast = partial(torch.autocast, "cpu", dtype=torch.bfloat16) if args.dtype == "amp" else nullcontext
    step = Step(torch, model, args.cap, cast, len(rollouts))
    by_length = sorted(rollouts, key=lambda rollout: len(rollout["tokens"]))

    def gradient(mode: str) -> Callable[[], float]:
        if mode == "packed":
            return partial(step.packed, packed_rows(torch, rollouts, args.pack_tokens))
        return partial(step.padded, padded_batches(torch, by_length if mode == "sorted" else rollouts, args.micro))

    def clip() -> float:
        return float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    # Nothing is updated here: every mode starts from the same weights, so their losses and norms must agree.
    tried: dict[str, float] = {}
    first: dict[str, dict[str, float]] = {}
    for mode in MODES if args.mode == "best" else (args.mode,):
        run = gradient(mode)
        for _ in range(2):  # the second time is warm; a long first one is near enough
            begin = time.perf_counter()
            loss = run()
            tried[mode] = time.perf_counter() - begin
            first[mode] = {"loss": loss, "grad_norm": clip()}
            optimizer.zero_grad(set_to_none=True)
            if args.mode != "best" or tried[mode] > 3.0:
                break
        progress(mode=mode, seconds=round(tried[mode], 4), **first[mode])
    mode = min(tried, key=lambda mode: tried[mode])
    chosen = gradient(mode)

    def once() -> None:
        chosen()
        clip()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    once()  # makes the optimizer's state
    ready = {
        "engine": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "mode": mode,
        "useful_tokens": trained,
        "processed_tokens": trained + sum(len(rollout["prompt"]) for rollout in rollouts),
        **first[mode],
    }
    progress(**ready)
    serve(args, out, once, dict, ready)


if __name__ == "__main__":
    main()
