#!/usr/bin/env python3
"""Makes data/golden/logits: two tiny random model folders and what transformers computes with them.

Usage: python tests/peers/make_logits.py data/golden/logits
Needs: torch==2.11.0 transformers==5.24.0 safetensors. Every parameter is random, norms and biases too, so that none can be
left out unseen. `llama` is stored in bf16 with its own output head and heads wider than hidden_size / heads; `qwen2` is
stored in f32, tied, with biases. The logits are computed in f32 with eager attention.
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

SEQUENCES = [[7], [1, 5, 9, 2, 0, 33, 12], [(11 * i * i + 3 * i + 1) % 40 for i in range(20)]]


def config(family: str):
    common = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                  bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if family == "llama":
        return LlamaConfig(vocab_size=48, hidden_size=32, head_dim=16, intermediate_size=48, tie_word_embeddings=False,
                           rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **common)
    return Qwen2Config(vocab_size=40, hidden_size=24, intermediate_size=40, tie_word_embeddings=True, rms_norm_eps=1e-6,
                       rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **common)


def make(out: Path, family: str, seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.25 + (1.0 if "norm" in name else 0.0))
    model.to(dtype).save_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0].tolist() for ids in SEQUENCES]
    rows = [{"tokens": ids, "logits": [[round(x, 6) for x in row] for row in rows]} for ids, rows in zip(SEQUENCES, logits)]
    (out / "logits.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    make(out / "llama", "llama", 1, torch.bfloat16)
    make(out / "qwen2", "qwen2", 2, torch.float32)


if __name__ == "__main__":
    main()
