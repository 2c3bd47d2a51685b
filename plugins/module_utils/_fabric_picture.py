# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show a fabric as a picture and as text: hosts, ports, halves, rails with addresses and measured Gb/s. What is wrong is red."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from ansible_collections.tandem.serving.plugins.module_utils._check import Check, Verdict, worst
from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Plan, Rail

_WIDTH, _ROW, _HEAD, _GAP = 330, 40, 58, 330
_COLOURS: dict[Verdict, str] = {"pass": "#1a7f37", "warn": "#9a6700", "inconclusive": "#57606a", "fail": "#cf222e"}
_INK, _PALE, _EDGE = "#1f2328", "#57606a", "#d0d7de"


class Box(NamedTuple):
    """A host on the picture: upper left corner, and the rows of its rails."""

    host: str
    plan: Plan
    x: float
    y: float
    rails: list[Rail]

    @property
    def height(self) -> float:
        return _HEAD + _ROW * max(len(self.rails), 1) + 10

    def row(self, number: int) -> float:
        """Middle of a rail's row."""
        return self.y + _HEAD + _ROW * number + _ROW / 2


def verdict_of(rail: Rail, checks: Iterable[Check]) -> Verdict:
    """The worst of the checks that name the rail's interface, its device or its cable."""
    names = [name for name in (rail["netdev"], rail["hca"], rail["cable"]) if name]
    found = [
        item["verdict"]
        for item in checks
        if any(
            _names(name, f"{item['name']} {item['found']}" if item["verdict"] != "pass" else item["name"])
            for name in names
        )
    ]
    return worst(found) if found else "inconclusive"


def _names(name: str, text: str) -> bool:
    """Whether a text names something as a whole word: rocep1s0f1 is not rocep1s0f10."""
    at = text.find(name)
    while at >= 0:
        after = text[at + len(name) : at + len(name) + 1]
        before = text[at - 1 : at]
        if not (after.isalnum() or before.isalnum()):
            return True
        at = text.find(name, at + 1)
    return False


def table(plans: Mapping[str, Plan]) -> str:
    """One line for each rail."""
    rows = [("host", "rail", "device", "GID", "address", "to", "Gb/s", "cable", "")]
    for host, plan in plans.items():
        for rail in plan["rails"]:
            verdict = verdict_of(rail, plan["checks"])
            rate = plan["gbps"].get(rail["hca"] or "")
            rows.append(
                (
                    host,
                    rail["netdev"],
                    rail["hca"] or "-",
                    "-" if rail["gid_index"] is None else str(rail["gid_index"]),
                    f"{rail['address']}/{rail['prefixlen']}" + ("" if rail["present"] else " (missing)"),
                    rail["peer_address"] or "-",
                    "-" if rate is None else f"{rate:.1f}",
                    rail["cable"] or "-",
                    "" if verdict in ("pass", "inconclusive") else verdict,
                )
            )
        if not plan["rails"]:
            rows.append((host, "no rail", "", "", "", "", "", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _text(
    x: float, y: float, words: str, *, size: int = 12, colour: str = _INK, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'


def _place(plans: Mapping[str, Plan]) -> list[Box]:
    """Two hosts face each other; more stand on the corners of a polygon; on a switch they stand in a row below it."""
    hosts = list(plans)
    tallest = _HEAD + _ROW * max([len(plan["rails"]) for plan in plans.values()] + [1]) + 10
    places: list[tuple[float, float]]
    topology = next(iter(plans.values()))["topology"]
    if topology == "switch":
        places = [(40 + number * (_WIDTH + 40), 190) for number in range(len(hosts))]
    elif len(hosts) <= 2:
        places = [(40 + number * (_WIDTH + _GAP), 80) for number in range(len(hosts))]
    else:
        across, down = _WIDTH + _GAP, tallest + 150
        places = [(40, 80), (40 + across, 80), (40 + across, 80 + down), (40, 80 + down)]
        if len(hosts) == 3:
            places[2] = (40 + across / 2, 80 + down)
    return [
        Box(host, plans[host], x, y, list(plans[host]["rails"])) for host, (x, y) in zip(hosts, places, strict=False)
    ]


def _box(box: Box) -> list[str]:
    state = worst(item["verdict"] for item in box.plan["checks"])
    found = [
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{_WIDTH}" height="{box.height:.0f}" rx="8" fill="#ffffff" '
        f'stroke="{_COLOURS[state] if state == "fail" else _EDGE}" stroke-width="{2 if state == "fail" else 1}"/>',
        _text(box.x + 14, box.y + 24, box.host, size=15, bold=True),
        _text(box.x + _WIDTH - 14, box.y + 24, f"rank {box.plan['rank']}", size=12, colour=_PALE, anchor="end"),
        _text(
            box.x + 14,
            box.y + 43,
            f"{box.plan['interface'] or 'no interface'}  {box.plan['address']}",
            size=11,
            colour=_PALE,
        ),
    ]
    if not box.rails:
        found.append(_text(box.x + 14, box.row(0) + 4, "no rail", colour=_COLOURS["fail"], bold=True))
    for number, rail in enumerate(box.rails):
        found += _rail(box, number, rail)
    return found


def _rail(box: Box, number: int, rail: Rail) -> list[str]:
    colour = _COLOURS[verdict_of(rail, box.plan["checks"])]
    y = box.row(number)
    device = " ".join(
        part
        for part in (rail["hca"] or "", f"gid {rail['gid_index']}" if rail["gid_index"] is not None else "")
        if part
    )
    speed = f"{rail['speed'] // 1000}G" if rail["speed"] else "no link"
    rate = box.plan["gbps"].get(rail["hca"] or "")
    if rate is not None:
        speed += f", sends {rate:.1f} Gb/s"
    return [
        f'<rect x="{box.x + 8:.0f}" y="{y - 17:.0f}" width="{_WIDTH - 16}" height="34" rx="4" fill="{colour}" fill-opacity="0.08"/>',
        f'<rect x="{box.x + 8:.0f}" y="{y - 17:.0f}" width="4" height="34" rx="2" fill="{colour}"/>',
        _text(box.x + 20, y - 3, rail["netdev"], bold=True),
        _text(box.x + 20, y + 11, device or "no RDMA", size=11, colour=_PALE),
        _text(
            box.x + _WIDTH - 18,
            y - 3,
            f"{rail['address']}/{rail['prefixlen']}",
            anchor="end",
            colour=_INK if rail["present"] else _COLOURS["fail"],
        ),
        _text(
            box.x + _WIDTH - 18,
            y + 11,
            speed if rail["present"] else "address is missing",
            size=11,
            anchor="end",
            colour=_PALE if rail["present"] else _COLOURS["fail"],
        ),
    ]


def _label(box: Box, rail: Rail, other: Box) -> str:
    """Measured Gb/s in both directions, as far as it was measured."""
    there = box.plan["gbps"].get(rail["hca"] or "")
    back = next((one for one in other.rails if one["address"] == rail["peer_address"]), None)
    here = other.plan["gbps"].get(back["hca"] or "") if back else None
    if there is None and here is None:
        return rail["subnet"]
    rates = " / ".join("-" if rate is None else f"{rate:.1f}" for rate in (there, here))
    return f"{rates} Gb/s"


def _lines(boxes: Sequence[Box]) -> list[str]:
    """All lines first, then their labels, so that no line crosses a label."""
    lines, labels = [], []
    seen = set()
    by_host = {box.host: box for box in boxes}
    for box in boxes:
        for number, rail in enumerate(box.rails):
            other = by_host.get(rail["peer"])
            if other is None or (rail["peer_address"], rail["address"]) in seen:
                continue
            seen.add((rail["address"], rail["peer_address"]))
            far = next((index for index, one in enumerate(other.rails) if one["address"] == rail["peer_address"]), 0)
            verdicts = [verdict_of(rail, box.plan["checks"])]
            if far < len(other.rails):
                verdicts.append(verdict_of(other.rails[far], other.plan["checks"]))
            colour = _COLOURS[worst(verdicts)]
            path, x, y = _curve(box, number, other, far)
            lines.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
            labels += _pill(x, y, _label(box, rail, other), colour)
    return lines + labels


def _curve(box: Box, number: int, other: Box, far: int) -> tuple[str, float, float]:
    """The line between two rails as an SVG path, and the middle of its label."""
    y1, y2 = box.row(number), other.row(far)
    if abs(box.x - other.x) > _WIDTH:
        (left, ya), (right, yb) = sorted([(box, y1), (other, y2)], key=lambda end: end[0].x)
        x1, x2 = left.x + _WIDTH, right.x
        path = f"M{x1:.0f},{ya:.0f} C{x1 + 90:.0f},{ya:.0f} {x2 - 90:.0f},{yb:.0f} {x2:.0f},{yb:.0f}"
        return path, (x1 + x2) / 2, (ya + yb) / 2
    # One above the other: out at the side and back in, the second half further out.
    side = -1 if box.x + other.x < _GAP + _WIDTH else 1
    x1, x2 = ((one.x if side < 0 else one.x + _WIDTH) for one in (box, other))
    near = x1 + side * (60 + 30 * (number % 2))
    back = x2 + side * (60 + 30 * (number % 2) + abs(x2 - x1) * 0.4)
    path = f"M{x1:.0f},{y1:.0f} C{near:.0f},{y1:.0f} {back:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"
    return path, (x1 + 3 * near + 3 * back + x2) / 8, (y1 + y2) / 2 + (26 if number % 2 else -26)


def _pill(x: float, y: float, words: str, colour: str) -> list[str]:
    width = len(words) * 6.6 + 14
    return [
        f'<rect x="{x - width / 2:.0f}" y="{y - 10:.0f}" width="{width:.0f}" height="20" rx="10" fill="#ffffff" '
        f'stroke="{colour}"/>',
        _text(x, y + 4, words, size=11, colour=colour, anchor="middle"),
    ]


def _switch(boxes: Sequence[Box]) -> list[str]:
    right = boxes[-1].x + _WIDTH
    centre = (boxes[0].x + right) / 2
    found = [
        f'<rect x="{centre - 130:.0f}" y="80" width="260" height="44" rx="8" fill="#eef1f4" stroke="{_EDGE}"/>',
        _text(centre, 107, "switch", size=14, anchor="middle", bold=True),
    ]
    for box in boxes:
        for number, rail in enumerate(box.rails):
            x = box.x + _WIDTH / 2 + (number - (len(box.rails) - 1) / 2) * 60
            colour = _COLOURS[verdict_of(rail, box.plan["checks"])]
            end = centre + (x - centre) * 0.2
            path = f"M{x:.0f},{box.y:.0f} C{x:.0f},{box.y - 40:.0f} {end:.0f},150 {end:.0f},124"
            found.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
    return found


def _faults(plans: Mapping[str, Plan], y: float, width: float) -> tuple[list[str], float]:
    """What is wrong, in words, below the picture."""
    found = []
    wrong = [
        (host, item)
        for verdict in ("fail", "warn")
        for host, plan in plans.items()
        for item in plan["checks"]
        if item["verdict"] == verdict
    ]
    for host, item in wrong:
        found.append(f'<circle cx="48" cy="{y - 4:.0f}" r="4" fill="{_COLOURS[item["verdict"]]}"/>')
        for line in _wrap(f"{host}, {item['name']}: {item['found']}. {item['remedy']}", int(width / 6.3)):
            found.append(_text(60, y, line))
            y += 17
        y += 5
    return found, y


def _wrap(text: str, columns: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) + 1 > columns:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def svg(plans: Mapping[str, Plan]) -> str:
    """The picture of a fabric, ``plans`` by host in rank order, as SVG that needs nothing else."""
    boxes = _place(plans)
    first = next(iter(plans.values()))
    switch = first["topology"] == "switch"
    ring = len(boxes) > 2 and not switch
    margin = 110 if ring else 0
    width = math.ceil(max(box.x for box in boxes) + _WIDTH + 40 + 2 * margin)
    bottom = max(box.y + box.height for box in boxes)
    faults, end = _faults(plans, bottom + 50, width - 120)
    state = worst(item["verdict"] for plan in plans.values() for item in plan["checks"])
    words = {"pass": "proven", "warn": "works, with warnings", "inconclusive": "not proven", "fail": "WRONG"}
    title = f"Fabric: {first['topology']} of {first['nranks']}, {first['transport']}"
    body = [
        f'<rect width="{width}" height="{end + 20:.0f}" fill="#f6f8fa"/>',
        _text(40, 46, title, size=20, bold=True),
        _text(width - 40, 46, words[state], size=16, colour=_COLOURS[state], anchor="end", bold=True),
        f'<g transform="translate({margin},0)">',
        *(_switch(boxes) if switch else _lines(boxes)),
        *[part for box in boxes for part in _box(box)],
        "</g>",
        *faults,
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{end + 20:.0f}" viewBox="0 0 {width} {end + 20:.0f}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(title)}">\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )
