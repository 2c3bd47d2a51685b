# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge saved logs: what is in them is found out by what the files say, not by their names."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from ansible_collections.tandem.serving.plugins.module_utils import (
    _engine_log,
    _engine_verdict,
    _log_source,
    _nccl_log,
    _nccl_perf,
    _nccl_verdict,
)
from ansible_collections.tandem.serving.plugins.module_utils._causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._check import Check


def diagnose(folder: Path, platform: str | None = None) -> dict[str, list[Check]]:
    """Checks by file, named relative to ``folder``; what the NCCL logs of all ranks say together stands under their common name.

    The folder should hold the logs of one server; it may also be one log. `LogError` when there is none.
    """
    if folder.is_file():
        files, folder = [folder], folder.parent
    else:
        # What is written about the logs names their lines.
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md")
    if not files:
        what = f"No log in {folder}" if folder.exists() else f"{folder} does not exist"
        raise _log_source.LogError(f"{what}: point diagnose_logs at a log, or at a folder with logs.")
    closed = {path: said for path in files if (said := _refusal(path))}
    found = {str(path.relative_to(folder)): [_closed(path, said)] for path, said in closed.items()}
    files = [path for path in files if path not in closed]
    nccl = {path: log for path in files if (log := _nccl_log.read(_source(path, folder))).processes or log.version}
    if nccl:
        name = "all ranks" if len(nccl) > 1 else str(next(iter(nccl)).relative_to(folder))
        found[name] = _nccl_verdict.judge(list(nccl.values()), platform)["checks"]
    for path in files:
        name = str(path.relative_to(folder))
        measured = _performance(path, name, platform)
        known = path in nccl or bool(measured)
        checks = [*measured, *_engine(path, folder, platform, known)]
        if not checks and not known:
            checks = [_unknown(name, empty=not any(_source(path, folder).lines))]
        if checks:
            found.setdefault(name, []).extend(checks)
    return found


def _source(path: Path, folder: Path) -> _log_source.Source:
    return _log_source.from_file(str(path))._replace(name=str(path.relative_to(folder)))


def _engine(path: Path, folder: Path, platform: str | None, known: bool) -> list[Check]:
    """Of an engine's log, how the start went and what its KV pool holds. A ``known`` file need not be one."""
    log = _engine_log.read(_source(path, folder))
    checks = [*_engine_verdict.judge([log]).checks, *_engine_verdict.judge_pool([log], platform=platform).checks]
    proven: dict[tuple[str, str], Check] = {}
    for item in checks:
        silent = (
            item["cause"] in ("no_engine_line", "no_kv_pool_line")
            # Words that an engine uses, as any text may.
            or (item["cause"] == "still_loading" and log.start.phase == "unknown" and not log.start.stall_lines)
            # What NCCL says has been judged by who knows it.
            or (known and (item["verdict"] == "inconclusive" or item["cause"] == "nccl_error"))
        )
        if not silent:
            # A start that failed for want of memory is said once.
            proven.setdefault((item["cause"], item["name"] if item["verdict"] == "pass" else ""), item)
    return list(proven.values())


def _performance(path: Path, name: str, platform: str | None) -> list[Check]:
    found = _nccl_perf.read(_log_source.text(_log_source.from_file(str(path))))
    if not found["tool"]:
        return []
    return _nccl_perf.judge(
        found, platform or _nccl_perf.guess_platform(found), _nccl_perf.guess_topology(found), source=name
    )


def _refusal(path: Path) -> str:
    """Why nothing of a file can be read; empty when something can."""
    if not os.access(path, os.R_OK):
        return "permission denied"
    if path.suffix == ".gz":
        try:
            with gzip.open(path) as stream:
                stream.read1(_log_source.BLOCK)
        except (OSError, EOFError, zlib.error) as error:
            return str(error)
    return ""


def _closed(path: Path, said: str) -> Check:
    return fault("log", "not_read", "a file to read", said, verdict="inconclusive", evidence=[f"{path}: {said}"])


def _unknown(name: str, *, empty: bool) -> Check:
    expected = "lines of NCCL, an engine, nccl-tests or perftest"
    cause, found = ("debug_level_too_low", "an empty file") if empty else ("no_known_line", "none")
    evidence = [f"{name}: nothing that is known"]
    return fault("log", cause, expected, found, verdict="inconclusive", evidence=evidence)
