"""Reports."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.tandem.serving.plugins.filter.report import report
from ansible_collections.tandem.serving.plugins.module_utils._check import check

EVIL = '<script>alert("1")</script> & more'
HOSTS = {
    "spark-a": [
        check("api health", "pass", "HTTP 200", "HTTP 200", evidence=["GET /health: HTTP 200"]),
        check(
            "nccl",
            "fail",
            "RDMA between the ranks, every communicator complete",
            "Call to ibv_modify_qp failed with 61 No data available, on dev rocep1s0f0:1, curr state INIT, next state RTR "
            + EVIL,
            cause="gid_index_empty",
            evidence=[
                "/var/lib/tandem/nccl/"
                + "a" * 90
                + ".log:20: spark-b:250:292 [0] misc/ibvwrap.cc:301 NCCL WARN "
                + EVIL
            ],
            remedy="Unset NCCL_IB_GID_INDEX, or set for each device the index of its own RoCE v2 address.",
        ),
    ],
    "spark-b": [check("nccl", "inconclusive", "RDMA", "no log", cause="no_log", remedy="Look.")],
}


@pytest.mark.parametrize("width", [100, 110, 120])
def test_the_table_keeps_its_width(width: int) -> None:
    lines = str(report(HOSTS, width=width)).splitlines()
    # A path is never broken.
    assert [line for line in lines if len(line) > width and "a" * 90 not in line] == []
    assert lines[-1] == "3 checks: 1 failed, 1 unproven, 1 ok"


def test_the_table_explains_what_did_not_pass() -> None:
    text = str(report(HOSTS, title="Verify", about={"recipe": "glm"}))
    assert text.startswith("Verify\nrecipe: glm\n")
    for part in ("FAILED", "gid_index_empty", "Unset NCCL_IB_GID_INDEX", ".log:20:", "unproven"):
        assert part in text
    assert "GET /health" not in text
    assert text.index("nccl") < text.index("api health")


def test_json_and_data_agree() -> None:
    data = report(HOSTS, "data", title="Verify")
    assert json.loads(str(report(HOSTS, "json", title="Verify"))) == data
    assert isinstance(data, dict)
    assert (data["verdict"], data["counts"]) == ("fail", {"pass": 1, "inconclusive": 1, "warn": 0, "fail": 1})
    assert data["hosts"] == HOSTS


class Page(HTMLParser):
    """Tags, text and references of a page; counts whether tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.references: list[str] = []
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("href", "src")]
        self.names += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone_and_is_escaped() -> None:
    drawn = '<svg xmlns="http://www.w3.org/2000/svg"><text>97.3 Gb/s</text></svg>'
    page = Page(str(report(HOSTS, "html", title=EVIL, about={EVIL: EVIL}, picture=drawn)))
    assert page.open == []
    assert "script" not in page.tags
    # Only to its own checks: those that did not pass, the worst first.
    assert page.references == ["#check-1-1", "#check-2-1"]
    assert page.names == ["check-1-1", "check-1-2", "check-2-1"]
    assert "97.3 Gb/s" in page.text
    assert page.text.count(EVIL) == 8
    assert "Unset NCCL_IB_GID_INDEX" in page.text


def test_nothing_checked_is_not_a_pass() -> None:
    data = report({"spark-a": []}, "data")
    assert isinstance(data, dict)
    assert data["verdict"] == "inconclusive"
    assert str(report({})).endswith("0 checks: none made")


def test_unknown_form() -> None:
    with pytest.raises(AnsibleFilterError, match="'pdf' is none of"):
        report({}, "pdf")
