"""The rows of the comparison: who does which work, what is read off, and what is aimed at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import work
from sides import HERE, ROOT, Facts, Once, Programs, Resident, Run, Side, have, python, runner_facts, scratch, trl_facts

Making = Callable[[], Side]


@dataclass(frozen=True)
class Figure:
    """One line of the table: the median over a side's runs of one of its facts, against the same of a peer or of a floor."""

    title: str
    unit: str
    fact: str = "rate"
    peer: str | None = None
    ours: str = "tidegate"
    # `ratio` is tidegate over peer, `sooner` peer over tidegate, `value` tidegate's own, `share` tidegate over the floor.
    of: Literal["ratio", "sooner", "value", "share"] = "ratio"
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Row:
    """What is measured together: the sides take turns, `repeats` times."""

    name: str
    figures: Sequence[Figure]
    sides: Callable[[Programs], list[Making]]
    repeats: int = 3
    # Arguments of roofline.py.
    floor: Callable[[], list[str]] | None = None
    # What shows that all did the same work: a fact, and how far two sides' medians may be apart, as a share of the first or as a difference.
    same: Sequence[tuple[str, float, Literal["share", "difference"]]] = ()


# Tokens of a prompt, most tokens of a response, sequences of a padded micro-batch.
SETTINGS = {"tiny": (16, 256, 64), "smol_f32": (64, 128, 8), "smol_bf16": (64, 128, 8)}
NAMES = {"tiny": "tiny", "smol_f32": "SmolLM2-135M", "smol_bf16": "SmolLM2-135M"}


def decode_work(model: str, slots: int) -> Path:
    prompt, longest, _ = SETTINGS[model]
    # What a real model samples wanders: of fewer requests even the mean log-probability does.
    requests = 4 * slots if model == "tiny" else max(4 * slots, 128)
    return work.write(scratch() / f"decode-{model}-{slots}.json", work.decode(have(model), requests, prompt, longest, seed=slots))


def train_work(model: str, rollouts: int) -> Path:
    prompt, longest, _ = SETTINGS[model]
    return work.write(scratch() / f"train-{model}.json", work.train(have(model), rollouts, prompt, longest))


def ours(programs: Programs, what: str, model: Path, path: Path, dtype: str, *more: str, tokens: str) -> Side:
    """The engine alone, started for each turn; it warms up by itself."""
    arguments = [str(programs.engine), what, str(model), str(path), "--threads", "2", "--repeats", "1", *more]
    arguments += [] if dtype == "fp32" else ["--dtype", dtype]
    return Once("tidegate", lambda _: arguments, partial(runner_facts, tokens=tokens))


def decode(model: str, dtype: str, slots: int, vllm: float, transformers: float | None = None, share: float | None = None) -> Row:
    """Four requests a slot (of a real model at least 128), sampled as fast as can be."""

    def sides(programs: Programs) -> list[Making]:
        path, folder = decode_work(model, slots), have(model)
        common = [str(folder), str(path), "--slots", str(slots), "--dtype", dtype]
        mine: list[Making] = [partial(ours, programs, "decode", folder, path, dtype, "--slots", str(slots), tokens="useful_tokens")]
        mine.append(partial(Resident, "vLLM", "vllm", "vllm_decode.py", common))
        if transformers is not None:
            mine.append(partial(Resident, "transformers", "peers", "transformers_decode.py", common))
        return mine

    def floor() -> list[str]:
        return ["decode", str(have(model)), str(decode_work(model, slots)), "--slots", str(slots), "--dtype", dtype]

    title = f"decode, {NAMES[model]} {dtype}, {slots} slots"
    figures = [Figure(title, "tok/s", peer="vLLM", at_least=vllm)]
    figures += [Figure(title, "tok/s", peer="transformers", at_least=transformers)] if transformers is not None else []
    figures += [Figure(title, "tok/s", of="share", at_least=share)] if share is not None else []
    # Random weights sample alike whatever the draws; what a real model samples wanders.
    tolerance = 0.02 if model == "tiny" else 0.4
    return Row(f"decode-{model}-{slots}", figures, sides, floor=floor, same=[("mean_logprob", tolerance, "difference")])


def train(model: str, dtype: str, rollouts: int, rate: float, memory: float) -> Row:
    """One optimizer step; bf16 computes in it with weights and moments in fp32, as PyTorch does under autocast."""
    theirs = {"fp32": "fp32", "bf16": "amp"}[dtype]

    def sides(programs: Programs) -> list[Making]:
        path, folder = train_work(model, rollouts), have(model)
        arguments = [str(folder), str(path), "--dtype", theirs, "--micro", str(SETTINGS[model][2])]
        return [
            partial(ours, programs, "train", folder, path, dtype, tokens="processed_tokens"),
            partial(Resident, "PyTorch", "peers", "torch_train.py", arguments, tokens="processed_tokens"),
        ]

    def floor() -> list[str]:
        return ["train", str(have(model)), str(train_work(model, rollouts)), "--dtype", dtype]

    title = f"training step, {NAMES[model]} {dtype if dtype == 'fp32' else 'bf16, weights fp32'}, {rollouts} rollouts"
    figures = [
        Figure(title, "tok/s", peer="PyTorch", at_least=rate),
        Figure(f"{title}: memory", "MiB", fact="peak_rss_mb", peer="PyTorch", at_most=memory),
    ]
    # In bf16 neither side's gradient is that of fp32; how far each is from it, gradients.py says.
    tolerance = 2e-3 if dtype == "fp32" else 5e-2
    same: list[tuple[str, float, Literal["share", "difference"]]] = [("loss", tolerance, "share"), ("grad_norm", tolerance, "share")]
    return Row(f"train-{model}-{dtype}", figures, sides, floor=floor, same=same)


def specification(model: Path, prompts: Path, pattern: str, more: Facts, turn: int) -> Facts:
    """What trl_grpo.py does, in tidegate's keys. What still differs: TRL adds 1e-4 to the deviation of a group's rewards, tidegate 1e-6; each
    has its own order of prompts and its own draws; and in bf16 TRL keeps weights and moments in bf16, tidegate in fp32. On policy, at a
    lag of 0, both have ratios of 1, so PPO's bounds cut nothing."""
    return {
        "seed": 1 + turn,
        "model.path": str(model),
        "data.file": str(prompts),
        "reward.kind": "regex",
        "reward.pattern": pattern,
        "batch.batch_size": 64,
        "batch.group_size": 8,
        "generate.slots": 64,
        "generate.temperature": 1.0,
        "estimate.advantage": "group_normalised",
        "estimate.zero_variance": "keep",
        "learn.loss.ppo.clip_low": 0.2,
        "learn.loss.ppo.clip_high": 0.2,
        "learn.aggregation": "seq_mean_token_mean",
        "learn.lr_schedule": "constant",
        "learn.warmup_steps": 0,
        "learn.beta1": 0.9,
        "learn.beta2": 0.999,
        "learn.eps": 1e-8,
        "learn.weight_decay": 0.0,
        "learn.grad_clip": 1.0,
        "checkpoint.every_minutes": 0.0,
        "eval.prompts": 0,
        **more,
    }


# One worker with two threads does both, or two workers with one each do one.
SHARED = {"workers.generators": [0], "workers.learners": [0], "workers.generator_threads": 2, "workers.learner_threads": 2}
APART = {"workers.generators": [0], "workers.learners": [1], "workers.generator_threads": 1, "workers.learner_threads": 1}
LAYOUTS: dict[str, Facts] = {
    "tidegate": {"schedule.max_lag": 4, **SHARED},
    "tidegate, 1 + 1 threads": {"schedule.max_lag": 4, **APART},
    "tidegate, on policy": {"schedule.max_lag": 0, **SHARED},
}


@dataclass(frozen=True)
class Grpo:
    """One GRPO job for both: `model` on sums whose `answer` is asked for."""

    model: str
    answer: str
    steps: int
    longest: int
    lr: float
    micro: int = 64
    messages: bool = False
    dtype: str = "fp32"

    def prompts(self) -> Path:
        return work.write(scratch() / f"sums-{self.answer}.jsonl", work.sums(self.answer, 1, self.messages))

    def trl(self, turn: int, more: Sequence[str] = ()) -> list[str]:
        named = {"steps": self.steps, "longest": self.longest, "lr": self.lr, "micro": self.micro, "dtype": self.dtype, "seed": turn}
        options = [word for name, value in named.items() for word in (f"--{name}", str(value))]
        script = [python("peers"), str(HERE / "trl_grpo.py"), str(have(self.model)), str(self.prompts())]
        return [*script, "--pattern", work.PATTERNS[self.answer], *options, *more]

    def run(self, name: str, programs: Programs) -> Side:
        keys: Facts = {"steps": self.steps, "generate.max_tokens": self.longest, "learn.lr": self.lr}
        # As fast as larger ones on a CPU, and smaller; TRL's are of `micro` sequences.
        keys |= {"generate.dtype": self.dtype, "learn.dtype": self.dtype, "learn.micro_batch_tokens": 1024}
        spec = partial(specification, have(self.model), self.prompts(), work.PATTERNS[self.answer], {**keys, **LAYOUTS[name]})
        return Run(name, programs.tidegate, spec)

    def sides(self, programs: Programs, layouts: Sequence[str] = tuple(LAYOUTS), more: Sequence[str] = ()) -> list[Making]:
        return [*(partial(self.run, name, programs) for name in layouts), partial(Once, "TRL", partial(self.trl, more=more), trl_facts)]


def end_to_end(job: Grpo, rate: float, memory: float | None = None, layouts: Sequence[str] = tuple(LAYOUTS)) -> Row:
    """Samples a second of a whole run, the first step included."""
    title = f"end to end, {NAMES[job.model]} {job.dtype}"
    targets: dict[str, float | None] = {"tidegate": rate}
    figures = [
        Figure(f"{title}{name.removeprefix('tidegate') or ', lag up to 4'}", "samples/s", ours=name, peer="TRL", at_least=targets.get(name)) for name in layouts
    ]
    figures += [Figure(f"{title}: memory", "MiB", fact="peak_rss_mb", peer="TRL", at_most=memory)] if memory is not None else []
    sides = partial(job.sides, layouts=layouts)
    return Row(f"end-to-end-{job.model}-{job.dtype}", figures, sides, same=[("tokens_a_sample", 0.15, "share")])


AIM, WINDOW = 0.9, 10


def learning() -> Row:
    """Until the mean reward of ten steps is 0.9; each turn has a seed of its own."""
    job = Grpo("tiny", "first", steps=400, longest=2, lr=1e-4)
    title = "to a mean reward of 0.9, tiny fp32"
    on_policy = "tidegate, on policy"
    figures = [
        Figure(f"time {title}, on policy", "s", fact="reached_s", ours=on_policy, peer="TRL", of="sooner", at_least=3.0),
        Figure(f"time {title}, lag up to 4", "s", fact="reached_s", peer="TRL", of="sooner", at_least=3.0),
        Figure(f"steps {title}, on policy", "steps", fact="reached_step", ours=on_policy, peer="TRL", at_least=0.85, at_most=1.15),
    ]
    until = ["--until", str(AIM), "--window", str(WINDOW)]
    return Row("learning", figures, partial(job.sides, layouts=["tidegate", on_policy], more=until), repeats=5)


def reached(curve: list[list[float]]) -> Facts:
    """Where the mean reward of a window first gets to the aim, its numbers being rounded to 4 places; nothing where it does not.

    >>> reached([[0.5 * i, 1.0] for i in range(12)]), reached([[0.0, 1.0]] * 9), reached([[0.0, 0.8]] * 20)
    ({'reached_s': 4.5, 'reached_step': 10}, {}, {})
    >>> reached([[0.5 * i, reward] for i, reward in enumerate([0.8906, 0.9062, 0.9062, 0.9375, 0.9375, 0.8438, 0.9062, 0.8906, 0.8125, 0.9688])])
    {'reached_s': 4.5, 'reached_step': 10}
    """
    for end in range(WINDOW, len(curve) + 1):
        if sum(reward for _, reward in curve[end - WINDOW : end]) >= (AIM - 5e-5) * WINDOW:
            return {"reached_s": curve[end - 1][0], "reached_step": end}
    return {}


def demo() -> Row:
    """tidegate against itself: a pipeline, or generating and training by turns, of one step's rollouts (which a lag of 0 comes to) or of eight."""
    layouts: dict[str, Facts] = {
        "tidegate": {"schedule.max_lag": 8, **SHARED},
        "tidegate, 1 + 1 threads": {"schedule.max_lag": 8, **APART},
        "conventional, G = 1": {"schedule.max_lag": 0, **SHARED},
        "conventional, G = 8": {"schedule.kind": "conventional", "schedule.steps": 8, **SHARED},
    }

    def sides(programs: Programs) -> list[Making]:
        same: Facts = {"steps": 60, "eval.prompts": 0, "checkpoint.every_minutes": 0.0}

        def keys(layout: Facts, turn: int) -> Facts:
            return {"seed": 1 + turn, **same, **layout}

        return [partial(Run, name, programs.tidegate, partial(keys, layout), ROOT / "data/demo.toml") for name, layout in layouts.items()]

    mine = ("tidegate", "tidegate, 1 + 1 threads")
    figures = [
        Figure(f"demo{name.removeprefix('tidegate') or ', one worker'}, max_lag 8", "samples/s", ours=name, peer=f"conventional, G = {phase}", at_least=least)
        for phase, least in ((1, 1.2), (8, 1.0))
        for name in mine
    ]
    figures += [Figure(f"demo{name.removeprefix('tidegate') or ', one worker'}: mean lag", "steps", fact="lag_mean", ours=name, peer="conventional, G = 8", at_most=1.0) for name in mine]
    return Row("demo", figures, sides)


def start() -> Row:
    """From the start of the process to the first token. Ours is the whole program, to its end."""

    def sides(programs: Programs) -> list[Making]:
        folder = have("tiny")
        path = work.write(scratch() / "start.json", work.decode(folder, 1, 16, 16))
        arguments = [str(folder), str(path), "--slots", "1", "--repeats", "1"]

        def peer(name: str, environment: str, script: str) -> Side:
            command = [python(environment), str(HERE / script), *arguments]
            return Once(name, lambda _: command, first_token)

        mine = [str(programs.engine), "decode", *arguments]
        return [
            partial(Once, "tidegate", lambda _: mine, lambda _: {}),
            partial(peer, "vLLM", "vllm", "vllm_decode.py"),
            partial(peer, "transformers", "peers", "transformers_decode.py"),
        ]

    title = "start to first token, tiny fp32"
    figures = [
        Figure(title, "s", fact="wall_s", of="value", at_most=1.5),
        Figure(title, "s", fact="wall_s", peer="vLLM", of="sooner"),
        Figure(title, "s", fact="wall_s", peer="transformers", of="sooner"),
    ]
    return Row("start", figures, sides)


def first_token(out: str) -> Facts:
    return {"wall_s": runner_facts(out, "useful_tokens")["start_to_first_token_s"]}


def rows() -> list[Row]:
    tiny = Grpo("tiny", "digitsum", steps=30, longest=64, lr=1e-3)
    smol: dict[str, Any] = {"answer": "sum", "steps": 3, "longest": 64, "lr": 1e-6, "micro": 16, "messages": True}
    two = ("tidegate", "tidegate, on policy")
    return [
        decode("tiny", "fp32", 64, vllm=1.5, transformers=4.0, share=0.6),
        decode("tiny", "fp32", 8, vllm=2.0),
        decode("smol_bf16", "bf16", 8, vllm=1.0),
        decode("smol_bf16", "bf16", 32, vllm=1.1, transformers=3.5),
        decode("smol_bf16", "bf16", 64, vllm=1.3, transformers=3.5),
        decode("smol_f32", "fp32", 32, vllm=1.2),
        train("tiny", "fp32", 64, rate=1.5, memory=0.25),
        train("smol_f32", "fp32", 32, rate=1.2, memory=1.0),
        train("smol_f32", "bf16", 32, rate=1.2, memory=1.0),
        end_to_end(tiny, rate=1.2),
        end_to_end(Grpo(**{**tiny.__dict__, "dtype": "bf16"}), rate=1.5),
        end_to_end(Grpo("smol_f32", **smol), rate=1.3, memory=0.5, layouts=two),
        end_to_end(Grpo("smol_bf16", **smol, dtype="bf16"), rate=1.3, memory=0.5, layouts=two),
        learning(),
        demo(),
        start(),
    ]
