# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what was measured on the rails: pings, routes, error counters, bandwidth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check
from ansible_collections.tandem.serving.plugins.module_utils._fabric_causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Plan, Rail

# IP and ICMP headers: what a ping of a given MTU cannot carry.
HEADERS = 28
# Counters that traffic alone never moves.
ERRORS = (
    "port_rcv_errors",
    "port_xmit_discards",
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
)
# A half that carries less than this part of its twin's bytes carries nothing but background.
_FLAT = 0.05
# What the module fabric_bandwidth_info says without perftest.
MISSING = "ib_write_bw is not installed"
# The NIC of a DGX Spark can fall to 12.9 to 13.3 Gb/s until the power is off.
_STUCK_GBPS = (11.0, 15.0)


class Ping(TypedDict):
    """What ping said. ``local_mtu`` is that of the own interface where it was too small, 0 otherwise."""

    sent: int
    received: int
    local_mtu: int
    output: str


class Probe(TypedDict):
    """One rail as it was probed: a small ping, one that fills the MTU, and the kernel's way to the peer."""

    rail: Rail
    mtu: int
    small: Ping
    full: Ping
    route: dict[str, str]


class Measurement(TypedDict):
    """One run of ib_write_bw over one or more rails at once. ``gbps`` by device, None where it failed."""

    sender: str
    receiver: str
    cable: str
    gbps: dict[str, float | None]
    sent: dict[str, int | None]
    output: str


def parse_ping(text: str) -> Ping:
    """The output of ping, standard error included."""
    count = re.search(r"(\d+) packets transmitted, (\d+) (?:packets )?received", text)
    local = re.search(r"message too long, mtu=(\d+)", text)
    return Ping(
        sent=int(count[1]) if count else 0,
        received=int(count[2]) if count else 0,
        local_mtu=int(local[1]) if local else 0,
        output=text.strip(),
    )


def judge_probe(host: str, probe: Probe) -> Iterator[Check]:
    """Route, reachability and MTU of one rail, seen from ``host``."""
    rail = probe["rail"]
    path = f"{rail['netdev']} to {rail['peer_address']}"
    words: dict[str, Any] = {
        "host": host,
        "netdev": rail["netdev"],
        "address": rail["peer_address"],
        "cable": rail["cable"] or path,
        "peer": rail["peer"] or rail["peer_address"],
        "peer_netdev": rail["peer_netdev"] or "the interface at the other end",
    }
    if probe["route"]["netdev"] and probe["route"]["netdev"] != rail["netdev"]:
        yield fault(
            f"route of {path}",
            "route_not_on_rail",
            f"{rail['peer_address']} by {rail['netdev']}",
            probe["route"]["netdev"],
            **words,
        )
    small, full = probe["small"], probe["full"]
    evidence = full["output"].splitlines()[-4:]
    expected = f"{probe['mtu'] - HEADERS} bytes without fragmentation from {host}"
    if small["received"] == 0:
        yield fault(
            f"ping of {path}",
            "peer_unreachable",
            expected,
            "no answer even to a small packet",
            evidence=evidence,
            **words,
        )
    elif full["local_mtu"]:
        yield fault(
            f"ping of {path}", "local_mtu", expected, f"own MTU is {full['local_mtu']}", evidence=evidence, **words
        )
    elif full["received"] == 0:
        yield fault(
            f"ping of {path}", "path_mtu", expected, "small packets pass, large ones do not", evidence=evidence, **words
        )
    elif full["received"] < full["sent"]:
        lost = f"{full['sent'] - full['received']} of {full['sent']} lost"
        yield fault(f"ping of {path}", "packets_lost", expected, lost, verdict="warn", evidence=evidence, **words)
    else:
        yield check(f"ping of {path}", "pass", expected, f"{full['received']} of {full['sent']}", evidence=evidence)


def judge_counters(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> Iterator[Check]:
    """Error counters that moved while the rails were probed. What a flap at boot left behind does not count."""
    for name, counters in after.items():
        moved = {key: counters[key] - before.get(name, {}).get(key, 0) for key in ERRORS if key in counters}
        wrong = {key: value for key, value in moved.items() if value > 0}
        if wrong:
            found = ", ".join(f"{key} +{value}" for key, value in wrong.items())
            evidence = [f"{name}/{key}: {before.get(name, {}).get(key, 0)} -> {counters[key]}" for key in wrong]
            yield fault(f"counters of {name}", "errors_counted", "no new error", found, evidence=evidence, netdev=name)
        elif moved:
            yield check(f"counters of {name}", "pass", "no new error", f"{len(moved)} counters unchanged")


def judge_bandwidth(found: Measurement, half_gbps: float, port_gbps: float) -> Iterator[Check]:
    """One measurement against the rate of a half, or of a whole port where both halves ran at once."""
    path = f"{found['sender']} to {found['receiver']}, {found['cable']}"
    name = f"bandwidth of {path} ({', '.join(found['gbps'])})"
    evidence = found["output"].splitlines()[-12:]
    words: dict[str, Any] = {"path": path, "cable": found["cable"], "hca": ", ".join(found["gbps"])}
    words |= {"sender": found["sender"], "receiver": found["receiver"]}
    rates = [rate for rate in found["gbps"].values() if rate is not None]
    wanted = half_gbps if len(found["gbps"]) == 1 else port_gbps
    expected = f"{wanted:g} Gb/s or more"
    if len(rates) < len(found["gbps"]):
        if MISSING in found["output"] or "Couldn't connect to" in found["output"]:
            yield fault(
                name, "perftest_missing", expected, "not measured", verdict="inconclusive", evidence=evidence, **words
            )
            return
        failed = [hca for hca, rate in found["gbps"].items() if rate is None]
        yield fault(name, "rdma_failed", expected, f"no result on {', '.join(failed)}", evidence=evidence, **words)
        return
    total = sum(rates)
    measured = f"{total:.2f} Gb/s"
    if total >= wanted:
        yield check(name, "pass", expected, measured, evidence=evidence)
    elif all(_STUCK_GBPS[0] <= rate <= _STUCK_GBPS[1] for rate in rates) and half_gbps > _STUCK_GBPS[1]:
        yield fault(name, "nic_power_stuck", expected, measured, evidence=evidence, **words)
    else:
        yield fault(name, "bandwidth_low", expected, measured, evidence=evidence, **words)
    sent = {hca: value for hca, value in found["sent"].items() if value is not None}
    if len(sent) > 1 and min(sent.values()) < _FLAT * max(sent.values()):
        flat = min(sent, key=lambda hca: sent[hca])
        yield fault(
            f"halves of {path}",
            "twin_flat",
            "both halves carry traffic",
            ", ".join(f"{hca} {value} bytes" for hca, value in sent.items()),
            evidence=evidence,
            flat=flat,
            **words,
        )


def runs(plans: Mapping[str, Plan], tcp_port: int) -> list[dict[str, Any]]:
    """What to measure, one after the other: each cable one way, then the other.

    Each has ``cable``, ``sender``, ``receiver``, and the streams of both for the module fabric_bandwidth_info, ``send`` and
    ``receive``: first each half alone, then, where there are two, both at once.
    """
    rails = [(host, rail) for host, plan in plans.items() for rail in plan["rails"] if rail["hca"] and rail["present"]]
    by_address = {rail["address"]: (host, rail) for host, rail in rails}
    made = []
    for host, cable in dict.fromkeys((host, rail["cable"]) for host, rail in rails):
        group = [rail for name, rail in rails if (name, rail["cable"]) == (host, cable)]
        ends = [(rail, *by_address[rail["peer_address"]]) for rail in group if rail["peer_address"] in by_address]
        # Group 0, 1 ...: a half alone; the last: all of them.
        turns = list(enumerate(ends))
        turns += [(len(ends), end) for end in ends if len(ends) > 1]
        if ends:
            made.append(
                {
                    "cable": cable,
                    "sender": host,
                    "receiver": ends[0][1],
                    "send": [
                        {**_stream(near, tcp_port + turn), "server": near["peer_address"], "group": number}
                        for turn, (number, (near, _peer, _far)) in enumerate(turns)
                    ],
                    "receive": [_stream(far, tcp_port + turn) for turn, (_n, (_near, _peer, far)) in enumerate(turns)],
                }
            )
    return made


def _stream(rail: Rail, tcp_port: int) -> dict[str, Any]:
    return {"hca": rail["hca"], "gid_index": rail["gid_index"], "tcp_port": tcp_port}


def judge_clock(synchronized: bool) -> Check:
    """Clocks that differ make logs of two hosts hard to compare; nothing else depends on them."""
    if synchronized:
        return check(
            "clock",
            "pass",
            "synchronised with a time server",
            "synchronised",
            evidence=["timedatectl: NTPSynchronized=yes"],
        )
    return fault(
        "clock",
        "clock_not_synchronised",
        "synchronised with a time server",
        "not synchronised",
        evidence=["timedatectl: NTPSynchronized=no"],
        verdict="warn",
    )


def counters_of(devices: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Counters by device, of what the module rdma_info returned as ``devices``."""
    return {port["hca"]: dict(port["counters"]) for device in devices for port in device["ports"]}
