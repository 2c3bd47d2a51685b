# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A report: the checks of several hosts as text for a terminal, as JSON, and as one HTML page that needs nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils._check import Check, Verdict, worst

Hosts = Mapping[str, Sequence[Check]]

# In the order in which a reader wants them.
_VERDICTS: tuple[Verdict, ...] = ("fail", "warn", "inconclusive", "pass")
_WORDS: dict[Verdict, str] = {"pass": "ok", "inconclusive": "unproven", "warn": "warning", "fail": "FAILED"}
_NARROWEST = 72
_INDENT = 12


def table(hosts: Hosts, title: str, about: Mapping[str, Any], width: int) -> str:
    """Text of at most ``width`` columns: one line of a check that passed, cause, evidence and remedy of any other."""
    width = max(width, _NARROWEST)
    rule = "-" * width
    longest = max([len(check["name"]) for checks in hosts.values() for check in checks] + [5])
    name_width = min(longest, width // 3)
    left = _INDENT + name_width + 2
    lines = [title, *_about(about, width), rule]
    for host, checks in hosts.items():
        lines.append(host)
        for check in _sorted(checks):
            found = wrap(check["found"], width - left) or [""]
            if check["verdict"] == "pass":
                found = [_cut(check["found"], width - left)]
            word = _WORDS[check["verdict"]]
            lines.append(f"  {word:<{_INDENT - 2}}{_cut(check['name'], name_width):<{name_width}}  {found[0]}".rstrip())
            lines += [" " * left + more for more in found[1:]]
            if check["verdict"] != "pass":
                lines += _details(check, width)
    return "\n".join([*lines, rule, _headline(hosts)])


def document(hosts: Hosts, title: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """The report as data: ``title``, ``about``, ``verdict``, ``counts`` by verdict, and the checks of each of ``hosts``."""
    counts = _counts(hosts)
    return {
        "title": title,
        "about": dict(about),
        "verdict": worst(check["verdict"] for checks in hosts.values() for check in checks),
        "counts": {verdict: counts[verdict] for verdict in reversed(_VERDICTS)},
        "hosts": {host: list(checks) for host, checks in hosts.items()},
    }


def to_json(hosts: Hosts, title: str, about: Mapping[str, Any]) -> str:
    """`document` as JSON text."""
    return json.dumps(document(hosts, title, about), indent=2, ensure_ascii=False) + "\n"


def to_html(hosts: Hosts, title: str, about: Mapping[str, Any], picture: str = "") -> str:
    """One page, without script and without anything that would have to be loaded. ``picture`` is SVG, taken as it is."""
    facts = "".join(f"<dt>{_html(name)}</dt><dd>{_html(value)}</dd>" for name, value in about.items())
    counts = _counts(hosts)
    tiles = "".join(
        f'<li class="{verdict}"><b>{counts[verdict]}</b> {_WORDS[verdict].lower()}</li>'
        for verdict in _VERDICTS
        if counts[verdict]
    )
    sections = "".join(_section(host, checks) for host, checks in hosts.items())
    verdict = worst(check["verdict"] for checks in hosts.values() for check in checks)
    return _PAGE.format(
        title=_html(title),
        verdict=verdict,
        headline=_html(_headline(hosts)),
        facts=facts,
        tiles=tiles,
        picture=f"<figure>{picture}</figure>" if picture else "",
        sections=sections,
        style=_STYLE,
    )


def _section(host: str, checks: Sequence[Check]) -> str:
    verdict = worst(check["verdict"] for check in checks)
    rows = "".join(_row(check) for check in _sorted(checks))
    return f'<section><h2><span class="badge {verdict}">{_WORDS[verdict].lower()}</span> {_html(host)}</h2>{rows}</section>'


def _row(check: Check) -> str:
    verdict = check["verdict"]
    parts = [
        ("Expected", _html(check["expected"])),
        ("Found", _html(check["found"])),
        ("Cause", f"<code>{_html(check['cause'])}</code>" if verdict != "pass" or check["cause"] != "ok" else ""),
        ("What to do", _html(check["remedy"])),
        ("Evidence", "<pre>" + _html("\n".join(check["evidence"])) + "</pre>" if check["evidence"] else ""),
    ]
    body = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in parts if text)
    opened = "" if verdict == "pass" else " open"
    summary = f'<span class="badge {verdict}">{_WORDS[verdict].lower()}</span> <b>{_html(check["name"])}</b> <i>{_html(check["found"])}</i>'
    return f"<details{opened}><summary>{summary}</summary><dl>{body}</dl></details>"


def _details(check: Check, width: int) -> list[str]:
    """Lines under a check that did not pass."""
    parts = [
        ("cause", [check["cause"]]),
        ("expected", [check["expected"]]),
        ("evidence", check["evidence"]),
        ("remedy", [check["remedy"]]),
    ]
    lines = []
    for name, texts in parts:
        label = f"{name}:"
        for text in filter(None, texts):
            # A path is kept in one piece, so that it can be copied.
            for piece in wrap(text, width - _INDENT - 10, break_long_words=False, break_on_hyphens=False):
                lines.append(" " * _INDENT + f"{label:<10}{piece}")
                label = ""
    return lines


def _about(about: Mapping[str, Any], width: int) -> Iterable[str]:
    return [_cut(f"{name}: {value}", width) for name, value in about.items()]


def _headline(hosts: Hosts) -> str:
    counts = _counts(hosts)
    said = [f"{counts[verdict]} {_WORDS[verdict].lower()}" for verdict in _VERDICTS if counts[verdict]]
    return f"{sum(counts.values())} checks: {', '.join(said) or 'none made'}"


def _counts(hosts: Hosts) -> Counter[str]:
    return Counter(check["verdict"] for checks in hosts.values() for check in checks)


def _sorted(checks: Sequence[Check]) -> list[Check]:
    """The worst first, otherwise as they came."""
    return sorted(checks, key=lambda check: _VERDICTS.index(check["verdict"]))


def _cut(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def _html(text: Any) -> str:
    return escape(str(text))


_STYLE = """
:root { color-scheme: light dark; --fg: #1c2024; --bg: #fff; --soft: #f3f5f7; --line: #d9dee3;
  --pass: #1a7f37; --warn: #9a6700; --fail: #cf222e; --inconclusive: #57606a; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e8ea; --bg: #14171a; --soft: #1e2226; --line: #343a40;
  --pass: #4ac26b; --warn: #d4a72c; --fail: #ff6b6b; --inconclusive: #9aa4ad; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 68rem; background: var(--bg); color: var(--fg);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; }
h2 { margin: 2rem 0 .6rem; font-size: 1.2rem; }
header > p { margin: .2rem 0 1rem; }
ul { display: flex; flex-wrap: wrap; gap: .6rem; margin: 0 0 1rem; padding: 0; list-style: none; }
li { padding: .3rem .9rem; border: 1px solid var(--line); border-left: 4px solid currentColor; border-radius: 6px; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .3rem 1.2rem; margin: .5rem 0; }
dt { opacity: .7; }
dd { margin: 0; overflow-wrap: anywhere; }
details { margin: .35rem 0; border: 1px solid var(--line); border-radius: 6px; background: var(--soft); }
details > dl { padding: 0 1rem .8rem; }
summary { padding: .45rem .8rem; cursor: pointer; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
summary i { opacity: .75; }
figure { margin: 0; overflow-x: auto; }
svg { max-width: 100%; height: auto; border-radius: 6px; }
pre { margin: 0; padding: .6rem; overflow-x: auto; border-radius: 4px; background: var(--bg); font-size: .85rem; white-space: pre-wrap; }
.badge { display: inline-block; min-width: 5.6rem; padding: 0 .5rem; border: 1px solid currentColor; border-radius: 1rem;
  font-size: .8rem; text-align: center; }
.pass { color: var(--pass); } .warn { color: var(--warn); } .fail { color: var(--fail); } .inconclusive { color: var(--inconclusive); }
@media print { details { break-inside: avoid; } }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="{verdict}">{headline}</p>
<ul>{tiles}</ul>
<dl>{facts}</dl>
</header>
<main>{picture}{sections}</main>
</body>
</html>
"""
