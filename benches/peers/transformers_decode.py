#!/usr/bin/env python3
"""Decoding with transformers' `generate`: sampling at temperature 1 with the log-probability of each sampled token.

`generate` takes a static batch, in which short sequences wait for the longest: the requests go through in batches of --slots, in their
order. Useful tokens are those that were asked for. The prompts' forward pass is in the time. The log-probability is taken inside the loop
(log-softmax, then the chosen one at the next call), so that no logits of past steps are kept. Needs: torch, transformers.
"""

from typing import Any

from common import prepare, progress, read_work, runner_arguments, serve, since_start


def main() -> None:
    parser = runner_arguments(__doc__)
    parser.add_argument("--slots", type=int, default=8, help="sequences of a batch")
    args = parser.parse_args()
    out = prepare(args)
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessor, LogitsProcessorList

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None
    requests = read_work(args.work)["requests"]

    class Recorder(LogitsProcessor):
        """Keeps the log-probabilities of the running step until the next call, which knows the chosen tokens."""

        def __init__(self) -> None:
            self.last: Any = None
            self.chosen: list[Any] = []

        def take(self, ids: Any) -> None:
            if self.last is not None:
                self.chosen.append(self.last.gather(1, ids[:, -1:]).squeeze(1))

        def __call__(self, ids: Any, logits: Any) -> Any:
            self.take(ids)
            self.last = torch.log_softmax(logits.float(), -1)
            return logits

    def generate(batch: list[dict[str, Any]], steps: int) -> Any:
        """[len(batch), steps] log-probabilities of the sampled tokens."""
        config = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=steps, eos_token_id=None, pad_token_id=0, use_cache=True
        )
        recorder = Recorder()
        ids = torch.tensor([request["prompt"] for request in batch])
        with torch.inference_mode():
            whole = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config, logits_processor=LogitsProcessorList([recorder])
            )
        recorder.take(whole)
        logp = torch.stack(recorder.chosen, 1)
        assert logp.shape == (len(batch), steps) and bool(torch.isfinite(logp).all())
        return logp

    useful = sum(request["tokens"] for request in requests)
    mean = [0.0]

    def once() -> None:
        total = 0.0
        for begin in range(0, len(requests), args.slots):
            batch = requests[begin : begin + args.slots]
            logp = generate(batch, max(request["tokens"] for request in batch))
            total += sum(float(row[: request["tokens"]].sum()) for row, request in zip(logp, batch))
        mean[0] = total / useful

    generate(requests[:1], 1)
    ready = {"engine": f"transformers {transformers.__version__}, torch {torch.__version__}", "useful_tokens": useful, "start_to_first_token_s": since_start()}
    progress(**ready)
    generate(requests[: args.slots], 4)
    serve(args, out, once, lambda: {"mean_logprob": round(mean[0], 5)}, ready)


if __name__ == "__main__":
    main()
