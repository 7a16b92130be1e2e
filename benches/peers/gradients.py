#!/usr/bin/env python3
"""How far gradients in bf16 are from the one in fp32: tidegate's and PyTorch's, on the work of the training rows.

The same first step is taken four times, by tidegate in fp32 and in bf16 and by PyTorch in fp32 and under autocast to bf16. Printed are loss, norm
of the gradient, and beside PyTorch's in fp32 the relative error |g - f| / |f| and the cosine, both over all weights at once. Needs: torch,
transformers, safetensors.
"""

import argparse
import json
import subprocess
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from common import read_work
from rows import train_work
from sides import Programs, last_json
from torch_train import Step, padded_batches

Gradient = dict[str, Any]


def ours(engine: Path, model: Path, work: Path, dtype: str) -> tuple[float, float, Gradient]:
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gradient.safetensors"
        command = [str(engine), "train", str(model), str(work), "--repeats", "1", "--dtype", dtype, "--gradient", str(file)]
        facts = last_json(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        return facts["loss"], facts["grad_norm"], load_file(file)


def theirs(model: Path, work: Path, amp: bool) -> tuple[float, float, Gradient]:
    import torch
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa").train()
    net.config.use_cache = False
    rollouts = sorted(read_work(str(work))["rollouts"], key=lambda rollout: -len(rollout["tokens"]))
    cast = partial(torch.autocast, "cpu", dtype=torch.bfloat16) if amp else nullcontext
    loss = Step(torch, net, 5.0, cast, len(rollouts)).padded(padded_batches(torch, rollouts, 8))
    norm = float(torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0))
    return loss, norm, {name: weight.grad for name, weight in net.named_parameters()}


def beside(gradient: Gradient, reference: Gradient) -> tuple[float, float]:
    """The relative error, and the cosine."""
    error = square = dot = length = 0.0
    for name, right in reference.items():
        a, b = gradient[name].double().flatten(), right.double().flatten()
        error += float((a - b).square().sum())
        square += float(b.square().sum())
        length += float(a.square().sum())
        dot += float(a @ b)
    return (error / square) ** 0.5, dot / (square * length) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="Hugging Face model folder, fp32")
    parser.add_argument("--rollouts", type=int, default=32, help="rollouts of the step (default 32)")
    parser.add_argument("--engine", type=Path, help="program of `cargo bench --bench engine` (default: built)")
    args = parser.parse_args()
    engine = args.engine or Programs.build().engine
    work = train_work(args.model.name, args.rollouts)
    loss, norm, reference = theirs(args.model, work, amp=False)
    print(json.dumps({"side": "PyTorch fp32", "loss": loss, "grad_norm": norm}))
    sides = {
        "tidegate fp32": partial(ours, engine, args.model, work, "fp32"),
        "tidegate bf16": partial(ours, engine, args.model, work, "bf16"),
        "PyTorch autocast": partial(theirs, args.model, work, amp=True),
    }
    for name, side in sides.items():
        loss, norm, gradient = side()
        error, cosine = beside(gradient, reference)
        print(json.dumps({"side": name, "loss": loss, "grad_norm": norm, "relative_error": round(error, 6), "cosine": round(cosine, 8)}), flush=True)


if __name__ == "__main__":
    main()
