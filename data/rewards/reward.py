#!/usr/bin/env python3
"""A reward for tidegate: judges the generated tasks to the letter, as `kind = "task"` does. Start from it for your own.

tidegate starts this program, writes one JSON object a line to its standard input and waits for one line on its standard
output for each, in the same order. Standard error is free: tidegate shows its last lines when too much fails. It is to go on
until its standard input ends. docs/rewards.md tells the whole.
"""
import json
import sys


def answer_in(task, completion):
    """What the completion gives as its answer: all of it, or what follows the last ">"; None where that mark is missing."""
    if task == "sorting":
        return completion
    _, mark, answer = completion.rpartition(">")
    return answer if mark else None


def reward(request):
    """The response to one request, without its id."""
    if request["task"] not in ("sorting", "addition", "expression"):
        # No reward: this rollout is left out, its siblings are not. A wrong answer is none of that, but a reward of 0.
        return {"error": f"no task of mine: {request['task']!r}"}
    given = answer_in(request["task"], request["completion"])
    correct = float(given == request["answer"])
    # `reward` is a finite number; `parts` says what it is made of, for the log.
    return {"reward": correct, "parts": {"correct": correct, "format": float(given is not None)}}


def main():
    for line in sys.stdin:
        request = json.loads(line)
        # `id` says what is answered; flush, or the line stays here in a buffer.
        print(json.dumps({"id": request["id"], **reward(request)}), flush=True)


if __name__ == "__main__":
    main()
