#!/usr/bin/env python3
"""What this machine can do: memory copied and read a second, matrix products a second in fp32 and bf16.

Floors are computed from these. Read rates are given for an array in memory (256 MB) and for others that caches may hold. Needs: torch.
"""

import argparse
import json
import os
import platform
import sys
from typing import Any

from common import Others, median_time, pin, tree_cpu, wait_quiet


def read_rate(torch: Any, size: int) -> float:
    """Bytes a second that a sum over an array of `size` bytes reads."""
    array = torch.zeros(max(1024, size // 4))
    return float(array.numel() * 4 / median_time(lambda: array.sum()))


def copy_rate(torch: Any, size: int) -> float:
    """Bytes a second that a copy of an array of `size` bytes reads and writes."""
    source = torch.zeros(size // 4)
    target = torch.empty_like(source)
    return float(2 * source.numel() * 4 / median_time(lambda: target.copy_(source)))


def product_rate(torch: Any, dtype: Any, side: int = 2048) -> float:
    """Operations a second in the product of two square matrices; an addition and a multiplication are two."""
    a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
    return float(2 * side**3 / median_time(lambda: a @ b))


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wait-quiet", type=float, default=0, metavar="S", help="wait up to S seconds for an idle machine")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    pin(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    print(f"waited {wait_quiet(args.wait_quiet)} s for a quiet machine", file=sys.stderr)
    with Others(tree_cpu) as meanwhile:
        row = {
            "processor": processor(),
            "processors": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "torch": torch.__version__,
            "threads": args.threads,
            "copy_gb_s": round(copy_rate(torch, 256_000_000) / 1e9, 1),
            "read_gb_s": {f"{mb} MB": round(read_rate(torch, mb * 1_000_000) / 1e9, 1) for mb in (4, 16, 64, 256)},
            "product_gflop_s": {name: round(product_rate(torch, dtype) / 1e9, 1) for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))},
        }
    print(json.dumps({**row, "others_cores": [meanwhile.cores]}))


if __name__ == "__main__":
    main()
