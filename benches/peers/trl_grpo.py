#!/usr/bin/env python3
"""GRPO from end to end with TRL on a CPU: a number of optimizer steps on prompts with one right answer.

No KL term, temperature 1, a constant learning rate, no warm-up, no gradient checkpointing; the advantage is the reward less the group's
mean over its deviation, the loss the mean over sequences of their mean over tokens. The reward is 1 where the group of --pattern finds the
answer in the completion. fp32, or bf16 as TRL does it: weights in bf16, training under autocast. `train_s` is from the call of train() to the
end of the last step; the split of a step: generation = TRL's call of transformers' generate; scoring = the rest of its generate-and-score;
training = forward and backward; rest = the optimizer and what else there is. Needs: torch, transformers, trl, datasets.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from typing import Any, TextIO

from common import Others, peak_rss_mb, prepare, reset_peak_rss, runner_arguments, tree_cpu, wait_quiet


def parse() -> argparse.Namespace:
    parser = runner_arguments(__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--completions", type=int, default=64, help="of an optimizer step (default 64)")
    parser.add_argument("--group", type=int, default=8, help="completions of a prompt (default 8)")
    parser.add_argument("--micro", type=int, default=64, help="completions of a forward and backward pass (default 64)")
    parser.add_argument("--longest", type=int, default=64, help="most tokens of a completion (default 64)")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--pattern", required=True, help="regular expression; its group is compared with the answer")
    parser.add_argument("--until", type=float, help="stop when the mean reward of the last --window steps is that high")
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Clock:
    """Where the time of each step went, and what it sampled."""

    def __init__(self) -> None:
        self.parts = {"generation": 0.0, "scoring": 0.0, "training": 0.0}
        self.tokens = 0
        self.steps: list[dict[str, float]] = []
        self.begun = 0.0

    def timed(self, part: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = call(*args, **kwargs)
        self.parts[part] += time.perf_counter() - begin
        return result


def main() -> None:
    args = parse()
    out = prepare(args)
    with tempfile.TemporaryDirectory() as folder:
        run(args, out, folder)


def run(args: argparse.Namespace, out: TextIO, folder: str) -> None:
    os.environ.setdefault("WANDB_DISABLED", "true")
    import re

    import datasets
    import torch
    import transformers
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    torch.set_num_threads(args.threads)
    datasets.disable_progress_bars()
    with open(args.work, encoding="utf-8") as file:
        prompts = datasets.Dataset.from_list([json.loads(line) for line in file])
    pattern = re.compile(args.pattern)
    clock = Clock()

    def reward(completions: list[Any], answer: list[str], **_: object) -> list[float]:
        texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
        found = [pattern.search(text) for text in texts]
        return [float(match is not None and match[1] == right) for match, right in zip(found, answer)]

    class Trainer(trl.GRPOTrainer):
        """Its own parts are private to it; these three are the ones whose time says most."""

        def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
            result = clock.timed("generation", super()._generate_single_turn, *given, **named)
            clock.tokens += sum(len(ids) for ids in result[0])
            return result

        def _generate_and_score_completions(self, *given: Any, **named: Any) -> Any:
            return clock.timed("scoring", super()._generate_and_score_completions, *given, **named)

        def training_step(self, *given: Any, **named: Any) -> Any:
            return clock.timed("training", super().training_step, *given, **named)

    class Watch(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begin, self.before, self.tokens = time.perf_counter(), dict(clock.parts), clock.tokens

        def on_step_end(self, *_: Any, **__: Any) -> None:
            end = time.perf_counter()
            spent = {part: clock.parts[part] - self.before[part] for part in clock.parts}
            clock.steps.append(
                {
                    "generation": spent["generation"],
                    "scoring": spent["scoring"] - spent["generation"],
                    "training": spent["training"] - spent["scoring"],
                    "rest": end - self.begin - spent["training"],
                    "tokens": clock.tokens - self.tokens,
                    "end": end - clock.begun,
                }
            )

        def on_log(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            recent = rewards(state)[-args.window :]
            if args.until is not None and len(recent) == args.window and sum(recent) / args.window >= args.until:
                control.should_training_stop = True

    def rewards(state: Any) -> list[float]:
        return [row["reward"] for row in state.log_history if "reward" in row]

    if args.completions % args.micro:
        raise SystemExit(f"--completions {args.completions} is not a multiple of --micro {args.micro}")
    accumulated = args.completions // args.micro
    config = trl.GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=args.micro,
        gradient_accumulation_steps=accumulated,
        steps_per_generation=accumulated,
        num_generations=args.group,
        max_completion_length=args.longest,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        temperature=1.0,
        loss_type="grpo",
        scale_rewards="group",
        max_steps=args.steps,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=args.dtype == "bf16",
        gradient_checkpointing=False,
        seed=args.seed,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16 if args.dtype == "bf16" else torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    trainer = Trainer(model=model, reward_funcs=reward, args=config, train_dataset=prompts, processing_class=tokenizer)
    trainer.add_callback(Watch())
    wait_quiet(args.wait_quiet)
    reset_peak_rss()
    with Others(tree_cpu) as meanwhile:
        clock.begun = time.perf_counter()
        trainer.train()
    steps = clock.steps
    split = {part: round(statistics.median(step[part] for step in steps), 4) for part in ("generation", "scoring", "training", "rest")}
    row = {
        "engine": f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}",
        "steps": len(steps),
        "samples": len(steps) * args.completions,
        "useful_tokens": sum(int(step["tokens"]) for step in steps),
        "train_s": round(steps[-1]["end"], 4),
        "median_step": split,
        "curve": [[round(step["end"], 3), round(reward, 4)] for step, reward in zip(steps, rewards(trainer.state))],
        "grad_norm": [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row][:1],
        "peak_rss_mb": peak_rss_mb(),
        "others_cores": [meanwhile.cores],
    }
    print(json.dumps(row), file=out, flush=True)


if __name__ == "__main__":
    main()
