#!/usr/bin/env python3
"""Decoding with vLLM on a CPU (`LLM.generate`, continuous batching): temperature 1, with the log-probability of each sampled token.

At most --slots sequences run at once, each for as many tokens as was asked for, ends of sequence ignored. The prompts' forward pass is in
the time, the start of the engine (which compiles) is not. Prefix caching is off: no two prompts are alike. The engine runs in this
process. Needs an environment with vLLM built for CPUs (`make .peers-vllm`).
"""

import os

from common import prepare, progress, read_work, runner_arguments, serve, since_start


def main() -> None:
    parser = runner_arguments(__doc__)
    parser.add_argument("--slots", type=int, default=8, help="most sequences that run at once")
    parser.add_argument("--kv-gib", type=int, default=1, help="memory for keys and values (default 1)")
    args = parser.parse_args()
    out = prepare(args, iomp=True)
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(args.kv_gib)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in (("VLLM_CPU_NUM_OF_RESERVED_CPU", "0"), ("VLLM_LOGGING_LEVEL", "WARNING"), ("VLLM_NO_USAGE_STATS", "1")):
        os.environ.setdefault(name, value)
    import vllm

    requests = read_work(args.work)["requests"]
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[args.dtype]
    longest = max(len(request["prompt"]) + request["tokens"] for request in requests)
    llm = vllm.LLM(
        model=args.model,
        dtype=dtype,
        max_num_seqs=args.slots,
        max_model_len=longest + 1,
        max_num_batched_tokens=max(2048, longest + 1),
        enable_prefix_caching=False,
        disable_log_stats=True,
        seed=0,
    )

    def sampling(tokens: int) -> vllm.SamplingParams:
        return vllm.SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)

    prompts = [{"prompt_token_ids": request["prompt"]} for request in requests]
    useful = sum(request["tokens"] for request in requests)
    outputs: list[vllm.RequestOutput] = []

    def once() -> None:
        outputs[:] = llm.generate(prompts, [sampling(request["tokens"]) for request in requests], use_tqdm=False)

    def facts() -> dict[str, float]:
        total = 0.0
        for output, request in zip(outputs, requests, strict=True):
            chosen = output.outputs[0]
            assert chosen.logprobs and len(chosen.token_ids) == len(chosen.logprobs) == request["tokens"]
            total += sum(logprobs[token].logprob for token, logprobs in zip(chosen.token_ids, chosen.logprobs))
        return {"mean_logprob": round(total / useful, 5)}

    llm.generate(prompts[:1], sampling(1), use_tqdm=False)
    ready = {"engine": f"vllm {vllm.__version__}", "useful_tokens": useful, "start_to_first_token_s": since_start()}
    progress(**ready)
    first = prompts[: args.slots]
    llm.generate(first, [sampling(4)] * len(first), use_tqdm=False)
    serve(args, out, once, facts, ready)


if __name__ == "__main__":
    main()
