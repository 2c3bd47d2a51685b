# SPDX-License-Identifier: MIT
"""Run a checkpoint through vLLM and print, as JSON, the greedy tokens of two prompts and their logprobs."""

from __future__ import annotations

import argparse
import json
import sys

PROMPTS = [[5, 17, 301, 44, 9, 260, 33, 78], [400, 12, 12, 7]]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model")
    arguments.add_argument("--tokens", type=int, default=10)
    arguments.add_argument("--options", type=json.loads, default={}, help="more arguments of LLM, as JSON")
    chosen = arguments.parse_args()
    from vllm import LLM, SamplingParams

    options = {"max_model_len": 256, "max_num_seqs": 4, "skip_tokenizer_init": True, "disable_log_stats": True}
    llm = LLM(chosen.model, **options | chosen.options)
    sampling = SamplingParams(temperature=0, max_tokens=chosen.tokens, ignore_eos=True, logprobs=0, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], sampling, use_tqdm=False)
    results = [
        {
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [next(iter(position.values())).logprob for position in output.outputs[0].logprobs],
        }
        for output in outputs
    ]
    print("RESULT " + json.dumps(results), flush=True)


if __name__ == "__main__":
    sys.exit(main())
