# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what `_nccl_log` has read: one verdict with its cause, and the checks behind it.

A later start supersedes an earlier one of the same rank; only the last starts decide. Sockets anywhere are a failure.
GPUDirect RDMA that is absent is right on GB10 and wrong on GB300. Where nothing is proven the verdict is inconclusive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._causes import remedy
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, Verdict, check
from ansible_collections.tandem.serving.plugins.module_utils._nccl_log import Channel, Log, Mark, Process

Platform = Literal["gb10", "gb300", "generic"]
PLATFORMS: tuple[Platform, ...] = ("gb10", "gb300", "generic")

_EXPECTED = "RDMA between the ranks, every communicator complete"
_SEVERITY: dict[Verdict, int] = {"fail": 0, "warn": 1, "inconclusive": 2, "pass": 3}
_WARN_CAUSES = ("gid_table_changed", "link_flap")
# Codes of why sockets came to be used -> cause. The earliest line decides.
_SOCKET_REASONS = {
    "ib_disabled": "ib_disabled_by_env",
    "net_socket_forced": "ib_disabled_by_env",
    "libibverbs_missing": "libibverbs_missing_in_image",
    "ib_no_device": "no_rdma_device_in_container",
    "ib_open_failed": "no_rdma_device_in_container",
}
# Codes that mean something on GB300 only, and those that only mean something while a communicator is not up.
_GB300_ONLY = ("data_direct_missing", "gdr_disabled")
_WHILE_STARTING = ("connect_retry",)
# One ConnectX-7 port of a DGX Spark is two PCIe functions, in two PCI domains, of otherwise the same name.
_PORT_HALF = re.compile(r"roce(?:P(\d+))?(p\d+s\d+f\d+)")
_GB10_SIGNS = re.compile(r"roceP2p1s0f\d|\benP7s7\b|\benP2p1s0f\dnp\d")


class _Finding(NamedTuple):
    cause: str
    verdict: Verdict
    found: str
    evidence: list[Mark]


def judge(logs: Sequence[Log], platform: str | None = None, since: float | None = None) -> dict[str, Any]:
    """What several logs say together and each by itself.

    ``platform`` is gb10, gb300 or generic, found out from the logs when None. Logs last changed before ``since``
    (seconds since the epoch) are stale: they are listed and left out of the verdict.

    Returns ``platform``, ``summary`` (the merged reading), ``files``, ``ranks``, ``warning_lines`` and ``checks``; their fields are
    documented with the module nccl_log_info.
    """
    stale = [log for log in logs if since is not None and log.modified is not None and log.modified < since]
    fresh = [log for log in logs if log not in stale]
    known = platform or guess_platform(logs)
    merged = _Reading(fresh, known)
    findings = merged.findings()
    if stale and not fresh:
        findings = [_stale(stale)]
    return {
        "platform": known,
        "summary": {
            **merged.summary(),
            **_decision(findings),
            "pair_verdict": findings[0].verdict if len(fresh) > 1 else None,
        },
        "files": [_file(log, log in stale, known, merged, findings) for log in logs],
        "ranks": [
            _rank(process, process in merged.current) for process in merged.processes if process.pid or process.ranks
        ],
        "warning_lines": [
            {"code": mark.code, "file": mark.source, "line": mark.line, "text": mark.text, "count": mark.count}
            for mark in merged.marks
        ],
        "checks": [_check(finding) for finding in findings],
    }


def guess_platform(logs: Iterable[Log]) -> Platform:
    """The platform that interface and device names give away."""
    names: list[str] = []
    for log in logs:
        for process in log.processes:
            if process.data_direct:
                return "gb300"
            names += [
                *process.hcas,
                process.oob or "",
                *process.settings.values(),
                *(process.bootstrap or ("", ""))[:2],
            ]
    if any(name.startswith("cx8r") for name in names):
        return "gb300"
    return "gb10" if any(_GB10_SIGNS.search(name) for name in names) else "generic"


class _Reading:
    """Several logs read as one."""

    def __init__(self, logs: Sequence[Log], platform: str) -> None:
        self.platform = platform
        # Of files the one last changed holds the later start.
        self.logs = sorted(logs, key=lambda log: log.modified or 0)
        self.place = {log.name: number for number, log in enumerate(self.logs)}
        self.processes = [process for log in logs for process in log.processes]
        self.versions = [log.version for log in self.logs if log.version]
        self.superseded = [process for process in self.processes if self._is_superseded(process)]
        self.current = [process for process in self.processes if process not in self.superseded]
        self.channels = {id(process): list(process.channels()) for process in self.processes}
        self.marks = sorted(
            (mark for process in self.processes for mark in process.marks.values() if self._matters(process, mark)),
            key=self._at,
        )

    def summary(self) -> dict[str, Any]:
        """The fields of the contract, but for the decision."""
        processes = self.processes
        channels = [(channel, mark.count) for process in processes for channel, mark in self.channels[id(process)]]
        started, completed, aborted = (
            sum(getattr(p, name) for p in processes) for name in ("started", "completed", "aborted")
        )
        gids: dict[str, Any] = next((p.gids for p in reversed(processes) if p.gids), {})
        total = sum(count for _channel, count in channels)
        gdr = sum(count for channel, count in channels if channel.gdr)
        networks = [p.network for p in processes if p.network]
        transport = _transport(channel for channel, _count in channels)
        chosen = transport is None and networks and not any(p.local_only for p in processes)
        if chosen:
            transport = "socket" if networks[-1] == "Socket" else "ib"
        return {
            "platform": self.platform,
            "nccl_version": self.versions[-1] if self.versions else None,
            "network": list(dict.fromkeys(name for p in processes for name in p.networks)),
            "transport": transport or "unknown",
            "transport_from": "network_line" if chosen else "channels" if transport else None,
            "gdr": gdr == total if total else None,
            "gdr_partial": 0 < gdr < total,
            "net_channels": {
                "ib": sum(count for channel, count in channels if channel.network != "Socket"),
                "socket": sum(count for channel, count in channels if channel.network == "Socket"),
                "gdr": gdr,
            },
            "hcas": list(dict.fromkeys(name for p in processes for name in p.hcas)),
            "data_direct": list(dict.fromkeys(name for p in processes for name in p.data_direct)),
            "oob": next((p.oob for p in processes if p.oob), None),
            "bootstrap": next((f"{p.bootstrap[0]}:{p.bootstrap[1]}" for p in processes if p.bootstrap), None),
            "ranks": sorted({rank for p in processes for rank in p.ranks}),
            "nranks": max((p.nranks for p in processes), default=0) or None,
            "peers": sorted({channel.peer for channel, _count in channels}),
            "communicators": {"started": started, "completed": completed, "aborted": aborted},
            "init_complete": started > 0 and completed >= started and not aborted,
            "rings_connected": any(p.rings for p in processes),
            "processes": [
                {"pid": p.pid, "transport": _transport(channel for channel, _mark in self.channels[id(p)]) or "unknown"}
                for p in processes
                if p.pid
            ],
            "warn_lines": sum(p.warn_lines for p in processes),
            "warnings": list(dict.fromkeys(mark.code for mark in self.marks)),
            "gid_index": gids.get("gid_index"),
            "local_gid": gids.get("local_gid"),
            "remote_gid": gids.get("remote_gid"),
        }

    def findings(self) -> list[_Finding]:
        """Everything to say, the decisive finding first. At least one."""
        found = [*self._events(), *self._sockets(), *self._loopback(), *self._versions(), *self._plugin()]
        found += self._unfinished(any(finding.verdict == "fail" for finding in found))
        found.sort(key=lambda finding: (_SEVERITY[finding.verdict], self._at(finding.evidence[0])))
        if not any(finding.verdict == "fail" for finding in found):
            found += [*self._below_means(), *self._nothing_proven(bool(found))]
            found.sort(key=lambda finding: _SEVERITY[finding.verdict])
        return found or [self._right()]

    def _events(self) -> Iterator[_Finding]:
        """Lines that prove a cause by themselves."""
        by_cause: dict[str, list[Mark]] = {}
        for mark in self._current_marks():
            if mark.cause:
                by_cause.setdefault(mark.cause, []).append(mark)
        for cause, marks in by_cause.items():
            if cause == "unrecognized_warning" and len(by_cause) > 1:
                continue
            harmless = cause in _WARN_CAUSES or (
                cause == "unrecognized_warning" and not any(p.unfinished for p in self.current)
            )
            said = marks[0].text.partition(" NCCL WARN ")[2] or marks[0].text
            yield _Finding(cause, "warn" if harmless else "fail", said, marks)

    def _sockets(self) -> Iterator[_Finding]:
        lines = [
            mark
            for process in self.current
            for channel, mark in self.channels[id(process)]
            if channel.network == "Socket"
        ] or [p.networks["Socket"] for p in self.current if p.network == "Socket" and not p.channel_lines]
        if not lines:
            return
        reasons = [mark for mark in self._current_marks() if mark.code in _SOCKET_REASONS]
        on_rdma = [
            p for p in self.current if any(channel.network != "Socket" for channel, _mark in self.channels[id(p)])
        ]
        before = [p for p in self.superseded if _transport(channel for channel, _mark in self.channels[id(p)]) == "ib"]
        if on_rdma:
            cause = "one_communicator_on_sockets"
        elif before:
            cause = "last_process_on_sockets"
        elif reasons:
            cause = _SOCKET_REASONS[reasons[0].code]
        elif untried := [p.evidence["socket"] for p in self.current if "socket" in p.evidence and not p.tried_rdma]:
            # Lines of networks are shown, and RDMA was not even looked for.
            cause, reasons = "ib_disabled_by_env", untried
        else:
            cause = "socket_transport"
        yield _Finding(
            cause,
            "fail",
            f"{sum(mark.count for mark in lines)} channel(s) over TCP sockets",
            [*reasons[:1], *lines[:2]],
        )

    def _loopback(self) -> Iterator[_Finding]:
        for process in self.current:
            name, address, mark = process.bootstrap or ("", "", None)
            alone = process.nranks == 1 or process.local_only or process.completed
            if (
                mark
                and not alone
                and (name == "lo" or name.startswith("lo:") or address.startswith("127.") or address == "::1")
            ):
                yield _Finding("bootstrap_on_loopback", "fail", f"the ranks are to meet at {name}:{address}", [mark])
            elif mark and process.unfinished and address.lower().startswith("fe80:"):
                yield _Finding(
                    "socket_ifname_has_no_address", "fail", f"{name} has only the link-local address {address}", [mark]
                )

    def _versions(self) -> Iterator[_Finding]:
        versions: dict[int, dict[str, Mark]] = {}
        for process in self.current:
            if process.version and process.rank is not None:
                versions.setdefault(process.rank, {})[process.version] = process.evidence["version"]
        # One rank may use two libraries, PyTorch's and the engine's; then all do.
        if len({frozenset(found) for found in versions.values()}) > 1:
            lines = {version: mark for found in versions.values() for version, mark in found.items()}
            said = f"NCCL {' and '.join(sorted(lines))}"
            yield _Finding("nccl_version_mismatch", "fail", said, list(lines.values()))

    def _plugin(self) -> Iterator[_Finding]:
        """No network at all, so that no communicator was ever started."""
        lines = [mark for mark in self._current_marks() if mark.code == "net_plugin_failed"]
        if lines and not any(p.started for p in self.current):
            reasons = [mark for mark in self._current_marks() if mark.code in _SOCKET_REASONS]
            cause = _SOCKET_REASONS[reasons[0].code] if reasons else "no_network_plugin"
            yield _Finding(cause, "fail", "no network could be opened", [*reasons[:1], *lines])

    def _unfinished(self, explained: bool) -> Iterator[_Finding]:
        for process in self.current:
            who = "the process" if process.rank is None else f"rank {process.rank}"
            if process.unfinished and not explained:
                retries = [mark for mark in process.marks.values() if mark.code == "connect_retry"]
                if retries and not process.channel_lines:
                    yield _Finding(
                        "bootstrap_connect_failed", "fail", f"{who} is still trying to reach its peer", retries
                    )
                    continue
                waits = set(process.open.values()) - {""}
                others = sorted({rank for p in self.current if p.finished & waits for rank in p.ranks})
                peers = f", while rank {', '.join(map(str, others))} did" if others else ""
                yield _Finding(
                    "init_not_complete",
                    "fail",
                    f"{who} started {process.started} communicator(s) and completed {process.completed}{peers}",
                    [process.evidence["started"]],
                )
            if process.aborted and not explained:
                yield _Finding(
                    "communicator_aborted",
                    "fail",
                    f"{who} aborted {process.aborted} communicator(s)",
                    [process.evidence["aborted"]],
                )

    def _below_means(self) -> Iterator[_Finding]:
        """All works, but with less than the machine has."""
        for process in self.current:
            channels = [(channel, mark) for channel, mark in self.channels[id(process)] if channel.network != "Socket"]
            marks = {mark.code: mark for mark in process.marks.values()}
            plain = [mark for channel, mark in channels if not channel.gdr]
            if self.platform == "gb300" and plain:
                reason = [marks["gdr_disabled"]] if "gdr_disabled" in marks else []
                yield _Finding("gdr_disabled", "warn", "network channels without /GDRDMA", [*reason, *plain[:2]])
            if self.platform == "gb10" and (halves := _single_halves(process.hcas)) and channels:
                evidence = [process.evidence["hcas"], channels[0][1]]
                yield _Finding("one_of_two_port_halves", "warn", f"only {', '.join(halves)}", evidence)
            used = _hcas_in_use(process, [channel for channel, _mark in channels])
            if process.overrides and used and len(used) < len(process.hcas):
                yield _Finding(
                    "subnet_override_collapses_devices",
                    "warn",
                    f"{', '.join(sorted(used))} of {', '.join(process.hcas)} carry all channels",
                    [process.evidence["override"], channels[0][1]],
                )
            if self.platform == "gb300" and channels and "data_direct_missing" in marks and not process.data_direct:
                yield _Finding(
                    "data_direct_unavailable_in_image",
                    "warn",
                    "no Data Direct interface",
                    [marks["data_direct_missing"]],
                )

    def _nothing_proven(self, explained: bool) -> Iterator[_Finding]:
        channels = [mark for process in self.current for _channel, mark in self.channels[id(process)]]
        if channels:
            if not any(process.started or process.completed for process in self.current) and not explained:
                said = "channels, and no line of a communicator"
                yield _Finding("debug_level_too_low", "inconclusive", said, channels[:2])
            return
        local = [mark for process in self.current for mark in process.channel_lines.values()]
        alone = [p.evidence["completed"] for p in self.current if p.nranks == 1 and "completed" in p.evidence]
        chosen = [mark for process in self.current for mark in process.evidence.values() if mark.code == "completed"]
        if local or alone:
            yield _Finding(
                "no_cross_node_channel", "inconclusive", "only channels inside one host", (local or alone)[:2]
            )
        elif chosen:
            yield _Finding("no_channel_yet", "inconclusive", "communicators, and no channel between ranks", chosen[:2])
        elif not self.logs:
            yield _Finding("no_log", "inconclusive", "no log", [])
        elif not explained:
            ends = [Mark("end", None, log.name, log.lines, b"end of the log") for log in self.logs]
            yield _Finding("debug_level_too_low", "inconclusive", "nothing of a communicator", ends)

    def _right(self) -> _Finding:
        channels = [(channel, mark) for p in self.current for channel, mark in self.channels[id(p)]]
        gdr = all(channel.gdr for channel, _mark in channels)
        data_direct = [name for p in self.current for name in p.data_direct]
        if any(self._was_wrong(process) for process in self.superseded):
            cause = "ok_after_restart"
        elif self.platform == "gb10" and not gdr:
            cause = "ok_gdr_not_expected_on_gb10"
        else:
            cause = "ok_data_direct" if data_direct and gdr else "ok"
        hcas = ", ".join(dict.fromkeys(name for p in self.current for name in p.hcas)) or channels[0][0].network
        count = sum(mark.count for _channel, mark in channels)
        evidence = [channels[0][1], *[p.evidence["completed"] for p in self.current if "completed" in p.evidence]]
        return _Finding(cause, "pass", f"{count} channels over {hcas}, {'' if gdr else 'no '}GPUDirect", evidence[:4])

    def _is_superseded(self, process: Process) -> bool:
        """Whether the same rank was started again later."""
        return any(self._succeeds(later, process) for later in self.processes)

    def _succeeds(self, later: Process, earlier: Process) -> bool:
        same_file = later.source == earlier.source
        if later is earlier or not (later.pid and earlier.pid) or not (same_file or later.host == earlier.host):
            return False
        if (self.place[earlier.source], earlier.last) > (self.place[later.source], later.first):
            return False
        if None not in (earlier.rank, later.rank) and earlier.rank != later.rank and _met(earlier, later):
            return False  # Containers on several hosts can give the same name and pid.
        if later.key == earlier.key:
            # One pid twice is the next start, or one process with two libraries, PyTorch's and the engine's.
            return later.version in (None, earlier.version)
        if earlier.finished & later.finished - {""}:
            return False
        if later.rank is None and not any(mark.cause for mark in later.marks.values()):
            return False  # It has not said anything yet.
        if None in (earlier.rank, later.rank):
            return earlier.device == later.device
        return earlier.rank == later.rank and (None in (earlier.bus, later.bus) or earlier.bus == later.bus)

    def _was_wrong(self, process: Process) -> bool:
        sockets = _transport(channel for channel, _mark in self.channels[id(process)]) in ("socket", "mixed")
        return (
            sockets or process.unfinished or process.aborted > 0 or any(mark.cause for mark in process.marks.values())
        )

    def _matters(self, process: Process, mark: Mark) -> bool:
        if mark.code in _GB300_ONLY:
            return self.platform == "gb300"
        return mark.code not in _WHILE_STARTING or process.unfinished

    def _current_marks(self) -> Iterator[Mark]:
        """Marks of the last starts. What no process signed counts from the first of these on."""
        owners = {id(mark): process for process in self.processes for mark in process.marks.values()}
        begin = min(((self.place[p.source], p.first) for p in self.current if p.pid), default=(0, 0))
        for mark in self.marks:
            owner = owners[id(mark)]
            if owner in self.current and (owner.pid or self._at(mark) >= begin):
                yield mark

    def _at(self, mark: Mark) -> tuple[int, int]:
        return self.place[mark.source], mark.line


def _met(one: Process, other: Process) -> bool:
    """Whether two processes were in one communicator."""
    ids = [process.finished | set(process.open.values()) for process in (one, other)]
    return bool(ids[0] & ids[1] - {""})


def _transport(channels: Iterable[Channel]) -> str | None:
    """The transport that network channels prove."""
    kinds = {"socket" if channel.network == "Socket" else "ib" for channel in channels}
    return "mixed" if len(kinds) > 1 else next(iter(kinds), None)


def _hcas_in_use(process: Process, channels: Iterable[Channel]) -> set[str]:
    """HCAs that carry channels. Between two ranks an override concerns all channels of a device, on rings only some."""
    used = {channel.device for channel in channels}
    if process.nranks == 2:
        used = {process.overrides.get(device, device) for device in used}
    return {name for device in used for name in process.devices.get(device, [f"device {device}"])}


def _single_halves(hcas: Iterable[str]) -> list[str]:
    """Of HCAs named by PCI address, those whose twin in the other PCI domain is absent."""
    halves: dict[str, list[str]] = {}
    for name in hcas:
        if found := _PORT_HALF.fullmatch(name):
            halves.setdefault(found[2], []).append(name)
    return [names[0] for names in halves.values() if len(names) == 1]


def _decision(findings: Sequence[_Finding]) -> dict[str, str]:
    return {"verdict": findings[0].verdict, "cause": findings[0].cause}


def _check(finding: _Finding) -> Check:
    return check(
        "nccl",
        finding.verdict,
        _EXPECTED,
        finding.found,
        cause=finding.cause,
        evidence=[str(mark) for mark in finding.evidence[:5]],
        remedy="" if finding.verdict == "pass" else remedy(finding.cause),
    )


def _stale(logs: Sequence[Log]) -> _Finding:
    marks = [Mark("stale", None, log.name, 1, b"last changed before the start") for log in logs]
    return _Finding("stale_log", "inconclusive", "no line since the start", marks)


def _file(log: Log, stale: bool, platform: str, merged: _Reading, findings: Sequence[_Finding]) -> dict[str, Any]:
    """One file by itself, and what the others add to it."""
    alone = _Reading([log], platform)
    decision = _decision([_stale([log])] if stale else alone.findings())
    missing = [
        process
        for process in merged.current
        if process.source != log.name
        and set(process.open.values()) & {identity for p in alone.current for identity in p.finished} - {""}
    ]
    if missing and decision["verdict"] == "pass":
        decision["cause"] = f"ok_this_rank_but_pair_missing_{'rank0' if missing[0].rank == 0 else 'peer'}"
    return {
        "file": log.name,
        "lines": log.lines,
        "stale": stale,
        **alone.summary(),
        **decision,
        "pair_verdict": findings[0].verdict if len(merged.place) > 1 and not stale else None,
    }


def _rank(process: Process, current: bool) -> dict[str, Any]:
    """One process."""
    channels = [channel for channel, _mark in process.channels()]
    return {
        "rank": process.rank,
        "nranks": process.nranks or None,
        "host": process.host,
        "pid": process.pid,
        "file": process.source,
        "current": current,
        "nccl_version": process.version,
        "network": list(process.networks),
        "transport": _transport(channels) or "unknown",
        "gdr": all(channel.gdr for channel in channels) if channels else None,
        "hcas": list(process.hcas),
        "bootstrap": f"{process.bootstrap[0]}:{process.bootstrap[1]}" if process.bootstrap else None,
        "peers": sorted({channel.peer for channel in channels}),
        "communicators": {"started": process.started, "completed": process.completed, "aborted": process.aborted},
        "settings": process.settings,
    }
