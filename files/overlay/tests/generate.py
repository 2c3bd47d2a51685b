# SPDX-License-Identifier: MIT
"""Run checkpoints through vLLM, one after another in this process, and print the greedy tokens of two prompts.

    python generate.py '[{"model": "...", "options": {...of LLM}, "env": {...}}, ...]' [FOLDER]

One line of JSON for each: `RESULT [{"tokens": [...], "logprobs": [[...], ...]}, ...]` with the five highest logprobs at each token,
or `FAILED "what was raised"`. With "node_rank" above 0 in its options, a job is a rank of the engine of another node, until stopped.
With FOLDER, the checkpoints of tiny.py are made there first.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path

PROMPTS = [[5, 17, 301, 44, 9, 260, 33, 78], [400, 12, 12, 7]]
OPTIONS = {"max_model_len": 256, "max_num_seqs": 4, "skip_tokenizer_init": True, "disable_log_stats": True}
LIKELIEST = 5


def run(model: str, options: dict[str, object], tokens: int = 10) -> list[dict[str, object]]:
    from vllm import LLM, SamplingParams

    llm = LLM(model, **OPTIONS | options)
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=LIKELIEST, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], sampling, use_tqdm=False)
    return [
        {
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [
                sorted((found.logprob for found in position.values()), reverse=True)[:LIKELIEST]
                for position in output.outputs[0].logprobs
            ],
        }
        for output in outputs
    ]


def follow(model: str, options: dict[str, object]) -> None:
    """What `vllm serve --headless` does, without an API server."""
    from vllm import EngineArgs
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    config = EngineArgs(model, **OPTIONS | options).create_engine_config(headless=True)
    MultiprocExecutor(config, monitor_workers=False).start_worker_monitor(inline=True)


def main() -> None:
    if len(sys.argv) > 2:
        import tiny

        tiny.main(Path(sys.argv[2]))
    from vllm.distributed import cleanup_dist_env_and_memory

    for job in json.loads(sys.argv[1]):
        model, options = job["model"], job["options"]
        os.environ |= job.get("env", {})
        if options.get("node_rank"):
            follow(model, options)
        try:
            print("RESULT " + json.dumps(run(model, options)), flush=True)
        except Exception as error:
            traceback.print_exc()
            print("FAILED " + json.dumps(f"{type(error).__name__}: {error}"), flush=True)
        gc.collect()
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()
