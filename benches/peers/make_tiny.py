#!/usr/bin/env python3
"""Makes a tiny model folder of random weights, with one token a character: 256 wide, 4 layers, 3.9 M parameters.

Usage: python benches/peers/make_tiny.py OUT [--arch qwen2|llama] [--dtype f32|bf16] [--seed N]
Needs: torch transformers tokenizers. The same seed gives the same folder. Prints one JSON line.
"""
import argparse
import json
from pathlib import Path

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+-*=?.,: \n"
SPECIAL = ["<pad>", "<bos>", "<eos>"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
THETA = 10_000.0


def tokenizer():
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {token: id for id, token in enumerate([*SPECIAL, *CHARACTERS])}
    by_character = Tokenizer(models.WordLevel(ids, unk_token="?"))
    by_character.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    by_character.decoder = decoders.Fuse()
    pad, bos, eos = SPECIAL
    made = PreTrainedTokenizerFast(tokenizer_object=by_character, pad_token=pad, bos_token=bos, eos_token=eos, unk_token="?",
                                   padding_side="left")
    made.chat_template = TEMPLATE
    return made


def model(arch: str, vocabulary: int):
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    config, kind = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[arch]
    return kind(config(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=4096, tie_word_embeddings=True, initializer_range=0.02,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, rope_parameters={"rope_type": "default", "rope_theta": THETA},
    ))


def edit(path: Path, key: str, value) -> None:
    values = json.loads(path.read_text())
    values[key] = value
    path.write_text(json.dumps(values, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder to make")
    parser.add_argument("--arch", choices=["qwen2", "llama"], default="qwen2")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="type of the weights in the folder")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    import torch

    words = tokenizer()
    torch.manual_seed(given.seed)
    made = model(given.arch, len(words)).to({"f32": torch.float32, "bf16": torch.bfloat16}[given.dtype])
    made.config.dtype = made.dtype
    words.save_pretrained(given.out)
    made.save_pretrained(given.out)
    # Where readers that are older than this transformers look.
    edit(given.out / "tokenizer_config.json", "chat_template", TEMPLATE)
    edit(given.out / "config.json", "rope_theta", THETA)
    text = "12+34=46\nok?"
    if words.decode(words(text)["input_ids"]) != text:
        raise SystemExit("the tokenizer does not give back what it was given")
    parameters = sum(p.numel() for p in made.parameters())
    print(json.dumps({"folder": str(given.out), "arch": given.arch, "dtype": given.dtype, "parameters": parameters}))


if __name__ == "__main__":
    main()
