# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A report: the checks of several hosts as text for a terminal, as JSON, and as one HTML page that needs nothing else."""

from __future__ import annotations

import json
import re
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
# Where a line of evidence is from: file and line, or the tool that said it.
_PLACE = re.compile(r"[^\s:]+:\d+: |[^:]{1,60}: ")
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
    counts = _counts(hosts)
    # Every check with the name under which the page refers to it, the worst first.
    numbered = {
        host: [(f"check-{place}-{number}", check) for number, check in enumerate(_sorted(checks), 1)]
        for place, (host, checks) in enumerate(hosts.items(), 1)
    }
    findings = [(host, *pair) for host, pairs in numbered.items() for pair in pairs if pair[1]["verdict"] != "pass"]
    findings.sort(key=lambda finding: _VERDICTS.index(finding[2]["verdict"]))
    return _PAGE.format(
        title=_html(title),
        verdict=worst(check["verdict"] for checks in hosts.values() for check in checks),
        headline=_html(_headline(hosts)),
        facts="".join(f"<dt>{_html(name)}</dt><dd>{_html(value)}</dd>" for name, value in about.items()),
        tiles="".join(
            f'<li class="{verdict}"><b>{counts[verdict]}</b> {_WORDS[verdict].lower()}</li>'
            for verdict in _VERDICTS
            if counts[verdict]
        ),
        findings=_findings(findings),
        picture=f"<figure>{picture}</figure>" if picture else "",
        sections="".join(_section(host, pairs) for host, pairs in numbered.items()),
        style=_STYLE,
    )


def _findings(findings: Sequence[tuple[str, str, Check]]) -> str:
    """What did not pass, and what to do about it."""
    items = "".join(
        f'<li class="{check["verdict"]}"><a href="#{anchor}"><b>{_html(check["name"])}</b> <small>{_html(host)}</small></a>'
        f"<p>{_html(check['found'])}</p>{_remedy(check)}</li>"
        for host, anchor, check in findings
    )
    return f'<section class="findings"><h2>What to look at</h2><ol>{items}</ol></section>' if items else ""


def _remedy(check: Check) -> str:
    return f'<p class="remedy">{_html(check["remedy"])}</p>' if check["remedy"] else ""


def _section(host: str, pairs: Sequence[tuple[str, Check]]) -> str:
    counts = Counter(check["verdict"] for _anchor, check in pairs)
    told = ", ".join(
        f'<span class="{verdict}">{counts[verdict]} {_WORDS[verdict].lower()}</span>'
        for verdict in _VERDICTS
        if counts[verdict]
    )
    rows = "".join(_row(anchor, check) for anchor, check in pairs)
    return f'<section class="host"><h2>{_html(host)} <small>{told}</small></h2>{rows}</section>'


def _row(anchor: str, check: Check) -> str:
    verdict = check["verdict"]
    parts = [
        ("Found", _html(check["found"])),
        ("Expected", _html(check["expected"])),
        ("What to do", _html(check["remedy"])),
        ("Cause", f"<code>{_html(check['cause'])}</code>" if verdict != "pass" or check["cause"] != "ok" else ""),
        ("Evidence", f"<pre>{chr(10).join(map(_evidence, check['evidence']))}</pre>" if check["evidence"] else ""),
    ]
    body = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in parts if text)
    opened = "" if verdict == "pass" else " open"
    summary = f'<span class="verdict">{_WORDS[verdict].lower()}</span><b>{_html(check["name"])}</b><i>{_html(check["found"])}</i>'
    return f'<details id="{anchor}" class="{verdict}"{opened}><summary>{summary}</summary><dl>{body}</dl></details>'


def _evidence(line: str) -> str:
    """A line of evidence, its place set off."""
    place = _PLACE.match(line)
    return f"<b>{_html(place[0])}</b>{_html(line[place.end() :])}" if place else _html(line)


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
:root { color-scheme: light dark; --fg: #1c2024; --bg: #f6f7f9; --card: #fff; --line: #dfe3e8; --soft: #5d6672; --code: #f3f5f7;
  --pass: #1a7f37; --warn: #9a6700; --fail: #cf222e; --inconclusive: #57606a; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e8ea; --bg: #101316; --card: #181c20; --line: #2e343b; --soft: #9aa4ad;
  --code: #101316; --pass: #4ac26b; --warn: #d4a72c; --fail: #ff6b6b; --inconclusive: #9aa4ad; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.2rem 4rem; max-width: 70rem; background: var(--bg); color: var(--fg);
  font: 15px/1.55 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.2; }
h2 { margin: 0; padding: .8rem 1.1rem; font-size: 1.05rem; border-bottom: 1px solid var(--line); }
small { font-size: .85em; font-weight: normal; color: var(--soft); }
header { padding: 0 0 1.2rem 1.1rem; border-left: 5px solid; }
header > p { margin: .3rem 0 .9rem; font-weight: 600; }
header > dl, header > h1 { color: var(--fg); }
section, figure { margin: 1.4rem 0 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
figure { padding: 1rem; overflow-x: auto; }
svg { display: block; margin: auto; max-width: 100%; height: auto; }
ul { display: flex; flex-wrap: wrap; gap: .6rem; margin: 0 0 1rem; padding: 0; list-style: none; }
ul > li { padding: .15rem .8rem; border: 1px solid; border-radius: 1rem; background: var(--card); }
ol { margin: 0; padding: .4rem 0; list-style: none; }
ol > li { padding: .5rem 1.1rem .5rem 1.3rem; }
ol > li + li { border-top: 1px solid var(--line); }
ol a { color: inherit; text-decoration: none; }
ol a::before { content: "\\25cf\\00a0\\00a0"; }
ol a:hover b { text-decoration: underline; }
ol p { margin: .1rem 0 0 1.15rem; color: var(--fg); overflow-wrap: anywhere; }
ol p.remedy { color: var(--soft); }
ol p.remedy::before { content: "\\2192\\00a0\\00a0"; }
dl { display: grid; grid-template-columns: 5.2rem minmax(0, 1fr); gap: .3rem .8rem; margin: 0; }
header > dl { grid-template-columns: max-content minmax(0, 1fr); gap: .1rem 1.2rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
details + details { border-top: 1px solid var(--line); }
details > dl { padding: .2rem 1.1rem 1rem 2.4rem; color: var(--fg); }
details[open] i { visibility: hidden; }
summary { display: flex; gap: .8rem; padding: .5rem 1.1rem; cursor: pointer; white-space: nowrap; list-style: none; }
summary::-webkit-details-marker { display: none; }
summary::before { content: "\\25b8"; width: .5rem; color: var(--soft); }
details[open] > summary::before { content: "\\25be"; }
summary:hover { background: var(--code); }
summary b { flex: none; max-width: 24rem; overflow: hidden; text-overflow: ellipsis; color: var(--fg); }
summary i { flex: 1; overflow: hidden; text-overflow: ellipsis; font-style: normal; color: var(--soft); }
.verdict { flex: none; width: 5.2rem; font-weight: 600; }
code, pre { font: .82rem/1.5 ui-monospace, monospace; }
pre { margin: 0; padding: .6rem .8rem; border-radius: 6px; background: var(--code); white-space: pre-wrap; overflow-wrap: anywhere; }
:target { outline: 2px solid currentColor; outline-offset: -2px; }
.pass { color: var(--pass); } .warn { color: var(--warn); } .fail { color: var(--fail); } .inconclusive { color: var(--inconclusive); }
@media (max-width: 40rem) { details > dl, header > dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
@media print { body { padding: 0; background: none; } details { break-inside: avoid; } }
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
<header class="{verdict}">
<h1>{title}</h1>
<p>{headline}</p>
<ul>{tiles}</ul>
<dl>{facts}</dl>
</header>
<main>{findings}{picture}{sections}</main>
</body>
</html>
"""
