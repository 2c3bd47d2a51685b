"""Whatever a tool prints, cut off anywhere: the parsers return, and never raise."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fabric import tree
from unit.fabric.test_proof import FULL, LOCAL

from ansible_collections.tandem.serving.plugins.module_utils import _fabric_proof, _netlink, _rdma, _rdma_verdict

JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ifname", "dev", "local"]), inner),
    max_leaves=8,
)


@settings(max_examples=100)
@given(st.sampled_from([FULL, LOCAL]), st.integers(0, 400), st.text(max_size=20))
def test_ping(said: str, end: int, noise: str) -> None:
    found = _fabric_proof.parse_ping(said[:end] + noise)
    assert found["received"] <= 3


@settings(max_examples=100)
@given(st.lists(JSON, max_size=3), st.integers(0, 60))
def test_netlink(rows: list[object], end: int) -> None:
    for text in (json.dumps(rows), json.dumps(rows)[:end]):
        assert isinstance(_netlink.parse_neighbours(text), list)
        assert isinstance(_netlink.parse_default_routes(text), list)
        assert _netlink.parse_lldp(text) == []


@settings(max_examples=50)
@given(st.data())
def test_sysfs_with_any_file_spoilt(data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        root = tree.write(Path(name), tree.load("spark_one_cable"))
        files = sorted(path for path in root.rglob("sys/class/*/*/**/*") if path.is_file())
        spoilt = data.draw(st.sampled_from(files))
        spoilt.write_bytes(data.draw(st.binary(max_size=12)))
        found = _rdma.read(root, _netlink.parse_addresses((root / "ip_addr.json").read_text()))
        assert len(found["devices"]) == 4
        assert _rdma_verdict.judge(found["devices"], found["netdevs"])
