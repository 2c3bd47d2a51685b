#!/usr/bin/env python3
"""Stand in for an engine that needs hardware: TensorFold as `tensorfold`, NVIDIA's vLLM for DGX Stations as `vllm`.

It takes the arguments and the environment of the recipes' facts and no others, joins the ranks over TCP, writes the lines that the
engine and NCCL write, and answers like a model that knows the canary's questions. STANDIN_FAULT lets it fail as the facts tell.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

NUMBER = r"[1-9]\d*"
ADDRESS = r"\d+\.\d+\.\d+\.\d+"
SNAPSHOT = r"/.+/hub/models--[^/]+/snapshots/[0-9a-f]{40}"
FAULT = os.environ.get("STANDIN_FAULT", "")

# Argument to what its value has to be; None for a switch.
TENSORFOLD: dict[str, str | None] = {
    "rank": "[0-3]",
    "master": ADDRESS,
    "master-port": "29551",
    "context": NUMBER,
    "drafter": f"none|{SNAPSHOT}",
    "max-tokens": NUMBER,
    "thinking": None,
    "vision": None,
}
TENSORFOLD_HEAD: dict[str, str | None] = {"name": r"\S+", "host": r"\S+", "port": "8888"}
TENSORFOLD_ENV = {
    "TF_ROCE_WAIT_S": "300",
    "TF_ROCE_HCA": r"[\w,]+",
    "TF_GLM_KV": "fp8|bf16",
    "TF_GLM_DENSE": "q4|fp8|bf16",
    "TF_GLM_MTP": "auto",
    "TF_GLM_COPY_DRAFTS": "[01]",
    "TF_GLM_COPY_MAX": r"1[0-5]|[1-9]",
    "TF_GLM_COPY_REPLY_MATCH": NUMBER,
    "TF_GLM_WIDE_GRAPHS": NUMBER,
    "TF_GLM_DFLASH_POLICY": r"fnc7:0\.3",
    "TF_GLM_HC_SPLIT": "[01]",
    "TF_GLM_PREFILL_OVERLAP": "[0-2]",
    "TF_GLM_KDA_CHUNKED": "[01]",
    "TF_GLM_SHARED_PREFIX": "[01]",
    "TF_GLM_MULTI_PREFILL": "[01]",
    "TF_GLM_MULTI_LONE": "[01]",
    "TF_GLM_MULTI_WATCHDOG_S": "300",
    "TF_GLM_CACHE_ENTRIES": "32",
    "TF_GLM_STREAM_SMOOTH": "[01]",
    "TF_GLM_STREAM_SMOOTH_MS": "400",
    "TF_GLM_FILL_BUDGET_MS": "200",
    "TF_GLM_FILL_DRAFTS": "[01]",
    "TF_GLM_L2PF": "[01]",
    "TF_GLM_EXL3_LOADS": "nc",
    "TF_GLM_DISPLAY_KV_MIB": r"\d+",
    "TENSORFOLD_NO_UPDATE_CHECK": "1",
    "TENSORFOLD_NUCLEUS_UNION": "[01]",
    "TENSORFOLD_GLM_IMAGE_TOKENS": NUMBER,
    "TENSORFOLD_GLM_VIDEO_TOKENS": NUMBER,
    "TENSORFOLD_GLM_VIDEO_FRAMES": NUMBER,
}
# What depends on the number of ranks and their cables: arguments, then variables.
EIGHT_STREAMS = {
    "TF_ROCE_MAX_KB": "1024",
    "TF_GLM_MULTI_WINDOW": "64",
    "TF_GLM_CACHE_GIB": "32",
    "TENSORFOLD_MEMORY_RESERVE_GIB": r"19\.6",
}
FOUR_RANKS = EIGHT_STREAMS | {
    "TF_GLM_EXL3_DEC_ORDER": "2",
    "TF_GLM_MULTI_SAMPLER": "packed",
    "TF_GLM_MULTI_DEPTH": "joint",
    "TF_GLM_MULTI_ASYNC": "1",
    "TF_GLM_PROMPT_OWN_FRONT": "1",
    "TF_GLM_PROMPT_MICROBATCH": "1",
    "TF_GLM_PREFILL_ROWS": "4096",
    "TF_GLM_SIDE": "1",
}
# Without a switch each peer is behind another port: both halves of both.
BOTH_PORTS = {"NCCL_IB_HCA": r"=\w+(,\w+){3}", "TF_ROCE_HCA": r"\w+(,\w+){3}"}
TENSORFOLD_SYSTEMS: dict[str, tuple[dict[str, str | None], dict[str, str]]] = {
    "pair": (
        {"tp": "2", "parallel": "4"},
        {
            "TF_GLM_COMM": "roce",
            "TF_ROCE_MAX_KB": "512",
            "TF_GLM_MULTI_WINDOW": "32",
            "TF_GLM_CACHE_GIB": r"12\.5",
            "TF_GLM_EXL3_DEC_ORDER": "0",
            "TENSORFOLD_MEMORY_RESERVE_GIB": r"14\.5",
        },
    ),
    "triangle": (
        {"tp": "3", "parallel": "8"},
        EIGHT_STREAMS
        | BOTH_PORTS
        | {
            "TF_GLM_COMM": "nccl",
            "TF_GLM_EXL3_DEC_ORDER": "0",
            "NCCL_CROSS_NIC": "1",
            "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
        },
    ),
    "ring": (
        {"tp": "4", "parallel": "8"},
        FOUR_RANKS
        | BOTH_PORTS
        | {
            "TF_GLM_COMM": "roce",
            "TF_NCCL_RING": "1",
            "TF_ROCE_RING": "1",
            "NCCL_ALGO": "Ring",
            "NCCL_GRAPH_FILE": r"/\S+",
            "NCCL_IB_MERGE_NICS": "0",
            "NCCL_IB_SUBNET_PREFIX_LEN": NUMBER,
        },
    ),
    "switch": ({"tp": "4", "parallel": "8"}, FOUR_RANKS | {"TF_GLM_COMM": "nccl"}),
}
# The facts' values of NVIDIA's recipe.
STATION: dict[str, str | None] = {
    "block-size": "128",
    "compilation-config": r'\{.*"cudagraph_capture_sizes":\[5,10,20,40,80\].*FULL_DECODE_ONLY.*\}',
    "cpu-offload-gb": "0",
    "disable-custom-all-reduce": None,
    "distributed-executor-backend": "mp",
    "distributed-timeout-seconds": "1800",
    "enable-auto-tool-choice": None,
    "enable-prefix-caching": None,
    "gpu-memory-utilization": r"0\.93",
    "host": r"\S+",
    "kernel-config": r'\{.*"moe_backend":"flashinfer_cutlass".*\}',
    "kv-cache-dtype": "fp8",
    "master-addr": ADDRESS,
    "master-port": "29501",
    "max-model-len": "98304",
    "max-num-batched-tokens": "8192",
    "max-num-seqs": "16",
    "nnodes": "2",
    "node-rank": "[01]",
    "port": "8000",
    "reasoning-parser": "glm47",
    "served-model-name": r"\S+",
    "speculative-config": r'\{"method":"mtp","num_speculative_tokens":4\}',
    "tensor-parallel-size": "2",
    "tool-call-parser": "glm47",
    "trust-remote-code": None,
}
STATION_WORKER: dict[str, str | None] = {"headless": None}
STATION_ENV = {
    "NCCL_NET": "IB",
    "NCCL_NET_GDR_LEVEL": "5",
    "NCCL_CUMEM_ENABLE": "1",
    "NCCL_IB_HCA": r"=[\w,]+",
    "VLLM_HOST_IP": ADDRESS,
}


def say(text: str) -> None:
    print(text, flush=True)


def end(text: str, status: int = 1) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    sys.exit(status)


def parse(words: list[str]) -> dict[str, str | None]:
    """Arguments after the model: name to value, None for a switch."""
    found: dict[str, str | None] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--")
            found[name] = None
        else:
            found[name] = word
    return found


def refuse(program: str, given: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> None:
    """End as argparse does where the arguments are not those of the facts."""
    if unknown := sorted(set(given) - set(wanted)):
        end(f"{program}: error: unrecognized arguments: {' '.join(f'--{name}' for name in unknown)}", 2)
    if missing := sorted(set(wanted) - set(given)):
        end(f"{program}: error: the following arguments are required: {', '.join(f'--{name}' for name in missing)}", 2)
    for name, pattern in wanted.items():
        value = given[name]
        if (value is None) != (pattern is None) or (pattern and not re.fullmatch(pattern, value or "", re.DOTALL)):
            end(f"{program}: error: argument --{name}: invalid choice: {value!r} (choose from {pattern})", 2)


def refuse_environment(program: str, wanted: Mapping[str, str], prefixes: tuple[str, ...] = ()) -> None:
    """The same for the environment: each variable that the facts name, and no other with the engine's own prefixes."""
    given = {
        name: value for name, value in os.environ.items() if name in wanted or name.startswith(prefixes or ("\0",))
    }
    for name, value in given.items():
        if name not in wanted or not re.fullmatch(wanted[name], value):
            choices = wanted.get(name, "nothing")
            end(f"{program}: error: argument {name}: invalid choice: {value!r} (choose from {choices})", 2)
    if missing := sorted(set(wanted) - set(given)):
        end(f"{program}: error: the following arguments are required: {', '.join(missing)}", 2)


def refuse_tensorfold(given: Mapping[str, str | None]) -> None:
    """Refuse what TensorFold's facts do not have for this rank of the system that STANDIN_TOPOLOGY names."""
    arguments, environment = TENSORFOLD_SYSTEMS[os.environ["STANDIN_TOPOLOGY"]]
    refuse("tensorfold", given, TENSORFOLD | arguments | (TENSORFOLD_HEAD if given.get("rank") == "0" else {}))
    refuse_environment("tensorfold", TENSORFOLD_ENV | environment, ("TF_", "TENSORFOLD_"))


def refuse_station(given: Mapping[str, str | None]) -> None:
    """Refuse what the facts of NVIDIA's recipe do not have for this rank."""
    refuse("vllm", given, STATION | ({} if given.get("node-rank") == "0" else STATION_WORKER))
    refuse_environment("vllm", STATION_ENV)


class Ranks:
    """The ranks' connections: a worker to the head, and the head to all workers."""

    def __init__(self, rank: int, nranks: int, address: str, port: int) -> None:
        self.lost = threading.Event()
        if rank:
            peers = [self._join(address, port)]
        else:
            listener = socket.create_server((address, port))
            peers = [listener.accept()[0] for _ in range(nranks - 1)]
        for peer in peers:
            threading.Thread(target=self._watch, args=(peer,), daemon=True).start()

    @staticmethod
    def _join(address: str, port: int) -> socket.socket:
        while True:
            try:
                return socket.create_connection((address, port), 5)
            except OSError:
                time.sleep(0.5)

    def _watch(self, peer: socket.socket) -> None:
        peer.settimeout(None)
        with contextlib.suppress(OSError):
            peer.recv(1)
        self.lost.set()


def nccl(rank: int, nranks: int, gdr: bool) -> None:
    """NCCL's log of one start, where NCCL_DEBUG_FILE says. Raises OSError or ParseError for a graph that it could not read."""
    if graph := os.environ.get("NCCL_GRAPH_FILE"):
        ElementTree.parse(graph)
    hca = os.environ["NCCL_IB_HCA"].removeprefix("=").split(",")
    netdev = os.environ["NCCL_SOCKET_IFNAME"]
    host = socket.gethostname()
    name = os.environ["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(os.getpid()))
    via = "NET/Socket/0" if FAULT == "socket" else "NET/IB/0/GDRDMA" if gdr and FAULT != "no_gdr" else "NET/IB/0"
    prefix = f"{host}:{os.getpid()}:{os.getpid()} [0] NCCL"
    comm = f"comm 0x55d0c7a19e2b rank {rank} nranks {nranks} cudaDev 0 nvmlDev 0 busId f01000 commId 0x5d0c7a19e2b84f63"
    devices = " ".join(f"[{index}]{device}:1/RoCE" for index, device in enumerate(hca))
    before, after = (rank - 1) % nranks, (rank + 1) % nranks
    lines = [
        f"INFO Bootstrap: Using {netdev}:{os.environ['VLLM_HOST_IP']}<0>",
        "INFO NCCL version 2.30.7+cuda13.0",
        f"INFO NET/IB : Using {devices} [RO]; OOB {netdev}:{os.environ['VLLM_HOST_IP']}<0>",
        f"INFO Using network {'Socket' if FAULT == 'socket' else 'IB'}",
        f"INFO ncclCommInitRank {comm} - Init START",
        f"INFO comm 0x55d0c7a19e2b rank {rank} nRanks {nranks} nNodes {nranks} localRanks 1 localRank 0 MNNVL 0",
        f"INFO Channel 00/0 : {before}[0] -> {rank}[0] [receive] via {via}",
        f"INFO Channel 00/0 : {rank}[0] -> {after}[0] [send] via {via}",
        f"INFO Connected all rings, use ring PXN 0 GDR {int('GDRDMA' in via)}",
        "INFO Connected all trees",
        f"INFO ncclCommInitRank {comm} - Init COMPLETE",
    ]
    if FAULT == "gid":
        lines[6:] = ["WARN Call to ibv_modify_qp failed with 61 No data available, on dev " + hca[0] + ":1"]
    Path(name).write_text("".join(f"{prefix} {line}\n" for line in lines))
    if FAULT == "gid":
        end("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)")


def answer(body: Mapping[str, Any], thinks: bool, field: str) -> dict[str, Any]:
    """What a good model says to the canary's questions, or a broken one."""
    content = body["messages"][-1]["content"]
    picture = not isinstance(content, str)
    asked = " ".join(part.get("text", "") for part in content) if picture else content
    told = {
        "OK": "OK",
        "France": "The capital of France is Paris.",
        "17 * 23": "17 * 23 = 391.",
        "Q1": "The change is 50 %.",
    }
    text = next((said for mark, said in told.items() if mark in asked), "Hello.")
    if "Count" in asked:
        text = ", ".join(str(number) for number in range(1, 61))
    if "lighthouse" in asked:
        text = " ".join(f"On day {day} the keeper lit lamp number {day * 7 % 31}." for day in range(1, 600))
    if picture:
        text = "Red."
    text = {"repeats": "!" * 60, "empty": ""}.get(FAULT, text)
    switched = (body.get("chat_template_kwargs") or {}).get("enable_thinking", thinks)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if switched and text:
        message[field] = "The question is easy."
    if body.get("tools"):
        call = {"name": body["tools"][0]["function"]["name"], "arguments": '{"city": "Hanoi"}'}
        message |= {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]}
    tokens = min(len(text.split()) + 5, int(body.get("max_tokens") or 4096))
    if "lighthouse" in asked:
        tokens = 3300
    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": tokens + 10}
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }


def serve(
    host: str, port: int, name: str, ranks: Ranks, page: Callable[[str, int], str], thinks: bool, field: str
) -> None:
    """Answer HTTP until a rank is lost and somebody asks. ``page`` makes /health and /metrics from the requests so far."""
    counts = {"requests": 0}

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if text.startswith("{") else "text/plain")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            if self.path in ("/health", "/metrics"):
                self.reply(200, page(self.path, counts["requests"]))
            elif self.path == "/v1/models":
                self.reply(200, json.dumps({"object": "list", "data": [{"id": name, "object": "model"}]}))
            else:
                self.reply(404, '{"detail": "Not Found"}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/chat/completions":
                self.reply(404, '{"detail": "Not Found"}')
            elif ranks.lost.is_set():
                self.reply(
                    500,
                    '{"error": {"message": "EngineCore encountered an issue. See stack trace for the root cause."}}',
                )
                threading.Thread(target=server.shutdown).start()
            else:
                counts["requests"] += 1
                self.reply(200, json.dumps(answer(body, thinks, field)))

        def log_message(self, format: str, *args: Any) -> None:
            say(f"INFO:     {self.client_address[0]}:{self.client_address[1]} - {format % args}")

    server = ThreadingHTTPServer((host, port), Handler)
    server.serve_forever()
    end("RuntimeError: a rank is lost")


def tensorfold(model: str, given: dict[str, str | None]) -> None:
    """TensorFold's start, and its ways not to."""
    rank, nranks = int(given.get("rank") or 0), int(given.get("tp") or 0)
    refuse_tensorfold(given)
    context = int(given["context"] or 0)
    say(f"[tensorfold] startup estimate 88.09 GiB for rank {rank}")
    if FAULT == "window":
        end(
            f"tensorfold: CUDA startup memory budget cannot fit requested context {context}; estimated largest fitting "
            "prompt-plus-reply window: 524288 tokens"
        )
    say(f"[tensorfold] rank {rank}: layers 0..44")
    ranks = Ranks(rank, nranks, str(given["master"]), int(given["master-port"] or 0))
    if FAULT == "split":
        end("NCCL error 2: unhandled system error")
    nccl(rank, nranks, gdr=False)
    pages, page = 11417, 256
    say(f"[tensorfold] KV pool: {pages * page} tokens in {pages} pages of {page}, 12.5 GiB on this rank")
    if rank:
        say(f"[tensorfold] rank {rank} ready in 3 s; following rank 0 at {given['master']}:{given['master-port']}")
        ranks.lost.wait()
        end("[tensorfold] RoCE: rank 0 is gone")

    def tell(path: str, requests: int) -> str:
        free = pages * page - requests * page
        if path == "/health":
            kept = {
                "busy": 0,
                "pool_tokens": pages * page,
                "pool_free_tokens": free,
                "iteration_s": 0.05,
                "kept_prompts": requests,
            }
            return json.dumps(kept)
        drafts = f"tensorfold:mtp_drafted_total {60 * requests}\ntensorfold:mtp_accepted_total {40 * requests}\n"
        rounds = f"tensorfold_health:rounds_total {20 * requests}\n"
        pool = f"tensorfold_health:pool_tokens {pages * page}\ntensorfold_health:pool_free_tokens {free}\n"
        return f"tensorfold_health:busy 0\n{pool}{drafts}{rounds}"

    say(f"[tensorfold] serving {given['name']} on {given['host']}:{given['port']}")
    say(f"{given['name']} is now LIVE! on port {given['port']}")
    serve(str(given["host"]), int(given["port"] or 0), str(given["name"]), ranks, tell, True, "reasoning_content")


def log(text: str) -> None:
    say(f"(EngineCore pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')} [standin.py:1] {text}")


def station(model: str, given: dict[str, str | None]) -> None:
    """The start of vLLM on a Station, and its ways not to."""
    rank = int(given.get("node-rank") or 0)
    refuse_station(given)
    length = int(given["max-model-len"] or 0)
    log("Resolved architecture: GlmMoeDsaForCausalLM")
    log(f"Using max model len {length}")
    log(f"Initializing a V1 LLM engine (v0.30.0) with config: model='{model}'")
    if FAULT == "free_memory":
        end(
            "ValueError: Free memory on device cuda:0 (180.2/251.98 GiB) on startup is less than desired GPU memory utilization "
            "(0.93, 234.34 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        )
    ranks = Ranks(rank, 2, str(given["master-addr"]), int(given["master-port"] or 0))
    log(
        f"world_size=2 rank={rank} local_rank=0 distributed_init_method=tcp://{given['master-addr']}:29501 backend=nccl"
    )
    log("vLLM is using nccl==2.30.7")
    nccl(rank, 2, gdr=True)
    log(f"Starting to load model {model}...")
    log("Model loading took 218.00 GiB and 43.123456 seconds")
    if FAULT == "kv":
        end(
            f"ValueError: To serve at least one request with the model's max seq len ({length}), (9.51 GiB KV cache is needed, which is "
            "larger than the available KV cache memory (7.90 GiB). Based on the available memory, the estimated maximum model length "
            "is 81664. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    log("Available KV cache memory: 12.40 GiB")
    tokens = 128000
    log(
        f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} tokens per request: {tokens / length:.2f}x"
    )
    log("Graph capturing finished in 12 secs, took 0.50 GiB")
    if rank:
        # The real one stays up, too, when the head is gone.
        threading.Event().wait()

    def tell(path: str, requests: int) -> str:
        if path == "/health":
            return ""
        drafts = 60 * requests
        accepted = 0 if FAULT == "drafts" else 3 * drafts
        labels = 'engine="0",model_name="glm-5.3"'
        size = f'block_size="128",num_gpu_blocks="1000",kv_cache_size_tokens="{tokens}",kv_cache_max_concurrency="{tokens / length:.4f}"'
        return (
            f"vllm:cache_config_info{{{labels},{size}}} 1.0\n"
            f"vllm:num_requests_running{{{labels}}} 0.0\nvllm:num_requests_waiting{{{labels}}} 0.0\n"
            f"vllm:prompt_tokens_total{{{labels}}} {10 * requests}.0\nvllm:generation_tokens_total{{{labels}}} {64 * requests}.0\n"
            f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}.0\n"
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {4 * drafts}.0\n"
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {accepted}.0\n"
        )

    say("INFO:     Application startup complete.")
    serve(str(given["host"]), int(given["port"] or 0), str(given["served-model-name"]), ranks, tell, True, "reasoning")


def main() -> None:
    # The first process of a container hears TERM only if it says so.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    program, (word, model, *rest) = Path(sys.argv[0]).name, sys.argv[1:]
    if word != "serve" or not re.fullmatch(SNAPSHOT, model) or not Path(model, "config.json").is_file():
        end(f"{program}: error: invalid choice: {word} {model}", 2)
    {"tensorfold": tensorfold, "vllm": station}[program](model, parse(rest))


if __name__ == "__main__":
    main()
