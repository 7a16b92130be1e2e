#!/usr/bin/env python3
"""Compares what tidegate makes of a real checkpoint with what transformers makes of it.

Usage: python tests/peers/check_model.py ask MODEL DIR fp32|bf16     writes DIR/asked.json: 20 texts, the type to compute in
       TIDEGATE_COMPARE=DIR cargo test --lib answers_for_comparison
       python tests/peers/check_model.py check DIR         compares
Needs: torch==2.11.0 transformers==5.24.0 safetensors. Compared are the ids of the texts, the ends of a sequence, all logits, the
greedy continuations (up to 64 tokens) with their texts, and the model as tidegate saves it. Logits in fp32 may differ by 1e-3;
in bf16 by what transformers' own bf16 differs from its fp32, in the largest and in the mean. Exit code 1 if anything is otherwise.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

TOLERANCE = 1e-3
SAVED_TOLERANCE = 1e-4
NEW_TOKENS = 64
STORY = ("The lighthouse had not been lit for eleven years, and the people of the harbour had grown used to the dark. ")
TEXTS = [
    "a",
    "\n",
    "The capital of France is",
    "1, 2, 3, 4, 5,",
    "Once upon a time",
    "def fibonacci(n):\n    \"\"\"The n-th Fibonacci number.\"\"\"\n",
    "Les élèves étudient la géographie; Straße, naïve, œuvre.",
    "日本の首都は東京です。中国的首都是北京。",
    "🦀🎉 emoji, \u200b zero width, e\u0301 combining, \ttabs and   spaces  ",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>The special tokens above are special.",
    STORY * 3,
    STORY * 8 + "Then, one night,",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Write one sentence about the sea."}],
    [{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": "Is water wet?"}],
    [{"role": "system", "content": ""}, {"role": "user", "content": "17 + 25 = ?"}],
    [{"role": "user", "content": "Name three colours."}, {"role": "assistant", "content": "Red, green, blue."},
     {"role": "user", "content": "And three more?"}],
    [{"role": "user", "content": "Summarise:\n\n" + STORY * 5}],
    [{"role": "user", "content": "Translate to English: 今日は良い天気ですね。"}],
    [{"role": "user", "content": "Explain, step by step, why the sum of two odd numbers is even."}],
]


def load(folder: Path, dtype: torch.dtype):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    wrong = [f"{kind}: {sorted(map(str, names))}" for kind, names in info.items() if names]
    if wrong:
        sys.exit(f"{folder}: {wrong}")
    return model.eval()


def ask(model: Path, out: Path, dtype: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in CHATS]
    out.mkdir(parents=True, exist_ok=True)
    asked = {"model": str(model.resolve()), "texts": TEXTS + chats, "dtype": dtype, "new_tokens": NEW_TOKENS}
    (out / "asked.json").write_text(json.dumps(asked))


def logits_of(model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def spread(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """The largest difference and the mean one."""
    far = (a - b).abs()
    return far.max().item(), far.mean().item()


def check_texts(out: Path, asked: dict, answers: dict, model) -> list[str]:
    wrong = []
    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    ends = model.generation_config.eos_token_id
    if sorted(answers["eos"]) != sorted([ends] if isinstance(ends, int) else ends):
        wrong.append(f"ends of a sequence: {answers['eos']}, not {ends}")
    for note in answers["notes"]:
        wrong.append(f"tidegate says of the folder: {note}")
    for number, (text, answer) in enumerate(zip(asked["texts"], answers["texts"], strict=True)):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if answer["tokens"] != ids:
            wrong.append(f"text {number}: ids {answer['tokens']}, not {ids}")
        said = tokenizer.decode(answer["continuation"], skip_special_tokens=True)
        if answer["text"] != said:
            wrong.append(f"text {number}: its continuation reads {answer['text']!r}, not {said!r}")
    return wrong


def check_logits(out: Path, asked: dict, answers: dict, model, bf16) -> list[str]:
    """Over all texts together: the largest difference and the mean one, ours and those of transformers' bf16."""
    pairs = {"tidegate": [], "transformers": []}
    with safe_open(out / "logits.safetensors", "pt") as ours:
        for number, answer in enumerate(answers["texts"]):
            right = logits_of(model, answer["tokens"])
            pairs["tidegate"].append((len(right), *spread(ours.get_tensor(str(number)), right)))
            if bf16 is not None:
                pairs["transformers"].append((len(right), *spread(logits_of(bf16, answer["tokens"]), right)))

    def whole(texts) -> tuple[float, float]:
        count = sum(tokens for tokens, _, _ in texts)
        return max(largest for _, largest, _ in texts), sum(tokens * mean for tokens, _, mean in texts) / count

    count = sum(len(answer["tokens"]) for answer in answers["texts"])
    largest, mean = whole(pairs["tidegate"])
    print(f"logits    {len(answers['texts'])} texts, {count} tokens: largest difference {largest:.1e}, mean {mean:.1e}")
    allowed = TOLERANCE, TOLERANCE
    if bf16 is not None:
        theirs = whole(pairs["transformers"])
        print(f"          transformers in bf16 against itself in fp32: largest {theirs[0]:.1e}, mean {theirs[1]:.1e}")
        allowed = theirs if asked["dtype"] == "bf16" else allowed
    return [] if largest <= allowed[0] and mean <= allowed[1] else [f"logits differ by {largest}, in the mean {mean}: allowed {allowed}"]


def check_greedy(asked: dict, answers: dict, model) -> list[str]:
    wrong, tokens = [], 0
    for number, answer in enumerate(answers["texts"]):
        prompt = torch.tensor([answer["tokens"]])
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=asked["new_tokens"], do_sample=False)
        right = ids[0, prompt.shape[1]:].tolist()
        tokens += len(right)
        if answer["continuation"] == right:
            continue
        at = next((i for i, (a, b) in enumerate(zip(answer["continuation"], right)) if a != b), min(len(right), len(answer["continuation"])))
        top = logits_of(model, answer["tokens"] + right[:at])[-1].topk(2).values
        wrong.append(f"text {number}: the continuation differs from token {at} on, where the best two are {top[0] - top[1]:.1e} apart")
    print(f"greedy    {len(answers['texts'])} continuations, {tokens} tokens: {len(answers['texts']) - len(wrong)} equal")
    return wrong


def check_saved(out: Path, answers: dict, model) -> list[str]:
    saved = load(out / "saved", torch.float32)
    far = max(spread(logits_of(saved, answer["tokens"]), logits_of(model, answer["tokens"]))[0] for answer in answers["texts"])
    theirs = model.state_dict()
    other = sorted(name for name, tensor in saved.state_dict().items() if not torch.equal(tensor, theirs[name]))
    print(f"saved     {len(theirs)} tensors, {len(other)} differ; in transformers its logits differ by {far:.1e}")
    tokenizer, right = AutoTokenizer.from_pretrained(out / "saved"), AutoTokenizer.from_pretrained(model.name_or_path)
    chat = [{"role": "user", "content": "Hi"}]
    same = tokenizer.apply_chat_template(chat, tokenize=False) == right.apply_chat_template(chat, tokenize=False)
    wrong = [] if same else ["the saved folder renders a chat otherwise"]
    # The same numbers, loaded twice, were seen to give logits that differ in their last bits: up to 2.1e-5, or not at all.
    wrong += [f"the saved model's logits differ by {far}"] if far > SAVED_TOLERANCE else []
    return wrong + [f"the saved model has other numbers in {name}" for name in other]


def check(out: Path) -> list[str]:
    asked, answers = json.loads((out / "asked.json").read_text()), json.loads((out / "answers.json").read_text())
    folder, dtype = Path(asked["model"]), asked["dtype"]
    model = load(folder, torch.float32)
    stored = json.loads((folder / "config.json").read_text())["dtype"]
    bf16 = load(folder, torch.bfloat16) if "bf16" == dtype or "bfloat16" == stored else None
    print(f"{folder.name}: computed in {dtype}, stored in {stored}")
    wrong = check_texts(out, asked, answers, model) + check_logits(out, asked, answers, model, bf16)
    if dtype == "fp32":
        wrong += check_greedy(asked, answers, model)
    return wrong + check_saved(out, answers, model)


def main() -> None:
    match sys.argv[1:]:
        case ["ask", model, out, "fp32" | "bf16" as dtype]:
            ask(Path(model), Path(out), dtype)
        case ["check", out]:
            sys.exit("\n".join(check(Path(out))) or 0)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
