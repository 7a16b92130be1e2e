#!/usr/bin/env python3
"""Loads model folders that tidegate saved in transformers, and compares the logits.

Usage: TIDEGATE_KEEP_SAVED=DIR cargo test --lib saved_folders && python tests/peers/check_saved.py DIR/*
Needs: torch==2.11.0 transformers==5.24.0 safetensors. Each folder has, beside the model, `logits.json`: what tidegate computed.
Exit code 1 if a folder does not load whole or a logit differs by more than 1e-4.
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

TOLERANCE = 1e-4


def check(folder: Path) -> list[str]:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    wrong = [f"{kind}: {sorted(map(str, names))}" for kind, names in info.items() if names]
    if model.dtype != torch.float32:
        wrong.append(f"dtype {model.dtype}")
    for row in json.loads((folder / "logits.json").read_text()):
        with torch.no_grad():
            theirs = model.eval()(torch.tensor([row["tokens"]])).logits[0]
        far = (theirs - torch.tensor(row["logits"])).abs().max().item()
        print(f"{folder}: {len(row['tokens'])} tokens, largest difference {far:.1e}, largest logit {theirs.abs().max():.1f}")
        if not far <= TOLERANCE:
            wrong.append(f"a logit differs by {far}")
    return wrong


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wrong = [f"{folder}: {what}" for folder in sys.argv[1:] for what in check(Path(folder))]
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
