#!/usr/bin/env python3
"""Makes data/golden/logits: a tiny random model folder of each family and what transformers computes with it.

Usage: python tests/peers/make_logits.py data/golden/logits
Needs: torch==2.11.0 transformers==5.24.0 safetensors. Every parameter is random, norms and biases too, so that none can be
left out unseen. `llama` is stored in bf16 with its own output head and heads wider than hidden_size / heads; `qwen2` is
stored in f32, tied, with biases; `qwen2.5` in bf16 with its own head, seven query heads to one of keys and values; `qwen3` in
bf16, tied, with norms of queries and keys; `llama3` is tied, its rope of type llama3 with waves in all three of its bands, over
sequences longer than the one it began with; `linear` has the rope of that type. The logits are computed in f32 with eager
attention; of a long sequence only the last ones are kept (`from` is the first position that is).
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

SEQUENCES = [[7], [1, 5, 9, 2, 0, 33, 12], [(11 * i * i + 3 * i + 1) % 40 for i in range(20)]]
LONG = [(7 * i * i + 5 * i + 3) % 40 for i in range(180)]
LAST = 6


def config(name: str):
    common = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                  bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if name == "llama":
        return LlamaConfig(vocab_size=48, hidden_size=32, head_dim=16, intermediate_size=48, tie_word_embeddings=False,
                           rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **common)
    if name in ("llama3", "linear"):
        # Of heads of 16 numbers the waves are 6, 14, 30, 65, 140, .. positions long; 64 / 4 and 64 / 1 are the bands' borders.
        rope = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}
        if name == "linear":
            rope = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
        common |= dict(max_position_embeddings=256, num_hidden_layers=1)
        return LlamaConfig(vocab_size=40, hidden_size=32, head_dim=16, intermediate_size=32, tie_word_embeddings=True,
                           rms_norm_eps=1e-5, rope_parameters=rope, **common)
    if name == "qwen3":
        return Qwen3Config(vocab_size=40, hidden_size=24, head_dim=12, intermediate_size=40, tie_word_embeddings=True,
                           rms_norm_eps=1e-6, attention_bias=False, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **common)
    if name == "qwen2.5":
        common |= dict(num_attention_heads=7, num_key_value_heads=1, eos_token_id=[2, 3])
        return Qwen2Config(vocab_size=40, hidden_size=28, intermediate_size=40, tie_word_embeddings=False, rms_norm_eps=1e-6,
                           rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **common)
    return Qwen2Config(vocab_size=40, hidden_size=24, intermediate_size=40, tie_word_embeddings=True, rms_norm_eps=1e-6,
                       rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **common)


def make(out: Path, seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(out.name))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.25 + (1.0 if "norm" in name else 0.0))
    model.to(dtype).save_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    rows = []
    for ids in SEQUENCES if model.config.max_position_embeddings < len(LONG) else [LONG]:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        start = len(LONG) - LAST if ids is LONG else 0
        kept = [[round(x, 6) for x in row] for row in logits[start:].tolist()]
        rows.append({"tokens": ids} | ({"from": start} if start else {}) | {"logits": kept})
    (out / "logits.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    make(out / "llama", 1, torch.bfloat16)
    make(out / "qwen2", 2, torch.float32)
    make(out / "qwen2.5", 3, torch.bfloat16)
    make(out / "qwen3", 4, torch.bfloat16)
    make(out / "llama3", 5, torch.bfloat16)
    make(out / "linear", 6, torch.bfloat16)


if __name__ == "__main__":
    main()
