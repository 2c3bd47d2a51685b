"""The journals of the ranks as one text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.plugin_utils import _journal

SECOND = 1_000_000


def printed(*entries: tuple[float, Any], unit: str = "tandem-rank.service") -> str:
    return "\n".join(
        json.dumps(
            {
                "__REALTIME_TIMESTAMP": str(int(moment * SECOND)),
                "__CURSOR": f"c{moment}",
                "MESSAGE": message,
                "_SYSTEMD_UNIT": unit,
            }
        )
        for moment, message in entries
    )


def test_ranks_are_merged_by_time() -> None:
    text = _journal.merge([printed((1, "one"), (3, "three")), printed((2.5, "two"))], [0, 1])
    assert text.splitlines() == [
        "01-01 00:00:01.000 rank 0 | one",
        "01-01 00:00:02.500 rank 1 | two",
        "01-01 00:00:03.000 rank 0 | three",
    ]


def test_the_supervisor_is_named() -> None:
    text = _journal.merge([printed((0, "start: rank 1 failed"), unit="tandem-supervisor.service")], [0])
    assert text == "01-01 00:00:00.000 supervisor | start: rank 1 failed"


def test_what_systemd_says_of_the_rank_counts_as_the_ranks() -> None:
    entry = {
        "__REALTIME_TIMESTAMP": "0",
        "MESSAGE": "Started",
        "UNIT": "tandem-rank.service",
        "_SYSTEMD_UNIT": "init.scope",
    }
    assert _journal.merge([json.dumps(entry)], [1]) == "01-01 00:00:00.000 rank 1 | Started"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("\x1b[1;36m(Worker)\x1b[0m ready  ", "(Worker) ready"),
        ([79, 75, 255], "OK\ufffd"),
        (None, "(too long to show)"),
        ("a\tb\rc", "a       b c"),
    ],
)
def test_a_message_is_made_plain(message: Any, shown: str) -> None:
    (entry,) = _journal.entries(printed((0, message)))
    assert entry.text == shown


def test_what_is_cut_off_is_left_out() -> None:
    whole = printed((1, "one"), (2, "two"))
    for length in range(len(whole)):
        assert [entry.text for entry in _journal.entries(whole[:length])] in ([], ["one"], ["one", "two"])


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"lines": "50"}, "--lines=50"),
        ({"lines": "50", "since": "-1h"}, "--since=-1h"),
        ({"lines": "0", "cursor": "x"}, "--after-cursor=x"),
    ],
)
def test_it_asks_for_what_is_wanted_alone(asked: dict[str, str], word: str) -> None:
    words = _journal.command(**asked)
    assert words[-1] == word
    assert sum(item.startswith(("--lines", "--since", "--after-cursor")) for item in words) == 1
