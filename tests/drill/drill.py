"""Break the pair of the rig in every way of the list, and see it serve again without a person.

    drill.py --cold               measure a cold start: empty compile caches, both ranks stopped
    drill.py --minutes 10         rounds of faults for ten minutes, those first that had the fewest so far
    drill.py --faults freeze cut  only these
    drill.py --table              what came of all rounds so far

Each round asks for two long answers, breaks something at a random moment, and waits until a short question is answered rightly, twice,
with both ranks on the same configuration. Results are lines of results.jsonl; `--minutes` needs a cold start among them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.jsonl")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
RIG = Path(os.environ.get("TANDEM_RIG_HOME") or CACHE / "tandem-rig")
HOSTS = {"spark-a": "10.98.0.11", "spark-b": "10.98.0.12"}
HEAD, WORKER = HOSTS
API = f"http://{HOSTS[HEAD]}:8888"
# How long a client waits, and how long a round may take before it counts as lost.
PATIENCE, LOST = 180.0, 600.0
CUT = 30
CTL = "python3 /usr/local/libexec/tandem/rank_ctl.py"


def on(host: str, words: str, timeout: float = 60) -> str:
    """Run a shell command as root on a node. Raises subprocess.CalledProcessError and TimeoutExpired."""
    ssh = [
        "ssh",
        "-F",
        str(RIG / "ssh/config"),
        "-o",
        "ConnectTimeout=5",
        HOSTS[host],
        f"sudo sh -c {shlex.quote(words)}",
    ]
    return subprocess.run(ssh, capture_output=True, text=True, check=True, timeout=timeout).stdout


def docker(*words: str) -> None:
    """What a node is: a container of the machine's Docker or of the rig's own."""
    socket = RIG / "run/docker.sock"
    host = ["--host", f"unix://{socket}"] if socket.exists() else []
    subprocess.run(["docker", *host, *words], check=True, capture_output=True, timeout=120)


def ask(prompt: str, tokens: int, timeout: float) -> tuple[str, str, float]:
    """An answer, or how it ended without one, and the seconds it took. Never raises."""
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{API}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = json.loads(answer.read())["choices"][0]["message"]["content"]
            return text, "answered", time.monotonic() - began
    except urllib.error.HTTPError as error:
        ended = f"HTTP {error.code}"
    except TimeoutError:
        ended = "timed out"
    except urllib.error.URLError as error:
        ended = "timed out" if isinstance(error.reason, TimeoutError) else type(error.reason).__name__
    except (OSError, ValueError, LookupError) as error:
        ended = type(error).__name__
    return "", ended, time.monotonic() - began


def right() -> bool:
    return "Paris" in ask("What is the capital of France?", 24, 15)[0]


def united() -> bool:
    """Both ranks run, and the same."""
    try:
        states = [json.loads(on(host, f"{CTL} state")) for host in HOSTS]
    except (subprocess.SubprocessError, ValueError):
        return False
    return all(state["active"] == "active" for state in states) and len({state["set"] for state in states}) == 1


def serves_again(began: float) -> float | None:
    """Seconds until the first of two right answers with both ranks up between them; None when it takes too long."""
    while (seconds := time.monotonic() - began) < LOST:
        if right() and united():
            time.sleep(6)
            if right():
                return seconds
        time.sleep(1)
    return None


def pids(host: str, title: str) -> str:
    """Processes of the rank on a host whose command line has this in it."""
    return on(host, f"docker top tandem-rank -eo pid,args | grep -E {shlex.quote(title)} | awk '{{print $1}}'").replace(
        "\n", " "
    )


def kill_worker(luck: random.Random) -> str:
    host = luck.choice(list(HOSTS))
    on(host, f"kill -9 {pids(host, 'Worker')}")
    return host


def kill_engine(luck: random.Random) -> str:
    on(HEAD, f"kill -9 {pids(HEAD, 'EngineCore')}")
    return HEAD


def stop_container(luck: random.Random) -> str:
    host = luck.choice(list(HOSTS))
    on(host, "docker stop --time 60 tandem-rank", 90)
    return host


def cut(luck: random.Random) -> str:
    host = luck.choice(list(HOSTS))
    on(host, f"systemd-run --quiet sh -c 'ip link set eth1 down; sleep {CUT}; ip link set eth1 up'")
    return host


def freeze(luck: random.Random) -> str:
    """A whole rank, or its worker alone."""
    host, title = luck.choice(list(HOSTS)), luck.choice(["[0-9]", "Worker"])
    on(host, f"kill -STOP {pids(host, title)}")
    return f"{host}, {'all' if title == '[0-9]' else 'the worker'}"


def reboot(hosts: list[str], luck: random.Random) -> str:
    """In order, or by pulling the plug. Two machines go down one after the other, in either order."""
    hosts = luck.sample(hosts, len(hosts))
    how = luck.choice(["restart", "power cut"])
    for host in hosts:
        docker(*(["restart", "--time", "90", host] if how == "restart" else ["kill", host]))
    if how == "power cut":
        time.sleep(luck.uniform(0, 5))
        for host in luck.sample(hosts, len(hosts)):
            docker("start", host)
    return f"{how} of {', '.join(hosts)}"


FAULTS: dict[str, Callable[[random.Random], str]] = {
    "kill_worker": kill_worker,
    "kill_engine": kill_engine,
    "stop_container": stop_container,
    "cut": cut,
    "freeze": freeze,
    "reboot_worker": lambda luck: reboot([WORKER], luck),
    "reboot_head": lambda luck: reboot([HEAD], luck),
    "reboot_both": lambda luck: reboot([HEAD, WORKER], luck),
}


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def write(row: dict[str, Any]) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def cold() -> dict[str, Any]:
    """Start both ranks from nothing but image and weights."""
    on(HEAD, "systemctl stop tandem-supervisor")
    for host in HOSTS:
        on(host, f"{CTL} stop; rm -rf /var/lib/tandem/cache", 120)
    began = time.monotonic()
    for host in (WORKER, HEAD):
        on(host, f"{CTL} start", 240)
    seconds = serves_again(began)
    on(HEAD, "systemctl start tandem-supervisor")
    return {"fault": "cold", "seconds": seconds and round(seconds, 1)}


def round_of(fault: str, seed: int, limit: float) -> dict[str, Any]:
    """One fault, from two requests in flight to a right answer."""
    luck = random.Random(seed)
    with ThreadPoolExecutor(2) as pool:
        flying: list[Future[tuple[str, str, float]]] = [
            pool.submit(ask, "Write a long story about a lighthouse.", 1500, PATIENCE) for _ in range(2)
        ]
        time.sleep(luck.uniform(1, 6))
        began = time.monotonic()
        where = FAULTS[fault](luck)
        seconds = serves_again(began)
        ended = [item.result() for item in flying]
    requests = [f"{how} after {took:.0f} s" for _, how, took in ended]
    clean = all(how != "timed out" for _, how, _ in ended)
    return {
        "fault": fault,
        "seed": seed,
        "where": where,
        "seconds": seconds and round(seconds, 1),
        "limit": round(limit, 1),
        "requests": requests,
        "held": seconds is not None and seconds <= limit and clean,
    }


def batch(faults: list[str], minutes: float) -> int:
    """Rounds until the time is over. Returns how many did not hold."""
    limit = 2 * max(row["seconds"] for row in rows() if row["fault"] == "cold")
    lost, began = 0, time.monotonic()
    while time.monotonic() - began < minutes * 60:
        counts = {fault: sum(row["fault"] == fault for row in rows()) for fault in faults}
        seed = random.SystemRandom().randrange(1 << 32)
        fewest = [fault for fault in faults if counts[fault] == min(counts.values())]
        row = round_of(random.Random(seed).choice(fewest), seed, limit)
        write(row)
        lost += not row["held"]
        if row["seconds"] is None:
            break
    return lost


def table() -> Iterator[str]:
    """The results as a table for README.md."""
    yield "| fault | rounds | held | median s | longest s |"
    yield "| --- | --- | --- | --- | --- |"
    found = rows()
    for fault in ("cold", *FAULTS):
        mine = [row for row in found if row["fault"] == fault]
        took = sorted(row["seconds"] for row in mine if row["seconds"] is not None)
        if took:
            held = "" if fault == "cold" else sum(row["held"] for row in mine)
            yield f"| {fault} | {len(mine)} | {held} | {statistics.median(took):.0f} | {took[-1]:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the pair of the rig, and see it serve again.")
    parser.add_argument("--cold", action="store_true", help="measure a cold start first")
    parser.add_argument("--minutes", type=float, default=0, help="how long to go on; a round that began is ended")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--table", action="store_true", help="print what came of it")
    asked = parser.parse_args()
    if asked.cold:
        write(cold())
    lost = batch(asked.faults, asked.minutes)
    if asked.table:
        print("\n".join(table()))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
