# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the Prometheus text that an engine serves at ``/metrics``.

Kept to the standard library: a target needs two or three gauges of it, and no pip package for that. The tests hold it
against prometheus_client's own parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_SAMPLE = re.compile(
    r"""^\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*
        (?:\{(?P<labels>(?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?
        \s+(?P<value>[^\s#]+)""",
    re.VERBOSE,
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


class Sample(NamedTuple):
    """One sample. ``labels`` are exact: ``block_size`` is not ``_block_size_resolved``."""

    name: str
    labels: Mapping[str, str]
    value: float


def _unescape(value: str) -> str:
    return _ESCAPE.sub(lambda match: {"n": "\n", "\\": "\\", '"': '"'}.get(match[1], match[0]), value)


def samples(text: str, *names: str) -> Iterator[Sample]:
    """The samples of the text, or those of the given names. A line that is none is passed over."""
    for line in text.split("\n"):
        if line.lstrip().startswith("#"):
            continue
        match = _SAMPLE.match(line)
        if not match or (names and match["name"] not in names):
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = {name: _unescape(raw) for name, raw in _LABEL.findall(match["labels"] or "")}
        yield Sample(match["name"], labels, value)
