# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment that follows from a rank's rails, and the graph that pins its channels to them."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Plan, Rail

GRAPH_FILE = "/etc/tandem/files/nccl_graph.xml"

_PLATFORM = {
    # The plug-ins of NGC images know neither halves nor subnets, and NCCL 2.30.4 hangs with NVLS.
    "gb10": {"NCCL_NET_PLUGIN": "none", "NCCL_NVLS_ENABLE": "0"},
    "gb300": {},
    "generic": {},
}
_TOPOLOGY = {
    # Each rail is a network of its own: traffic stays on the rail that it began on.
    "pair": {"NCCL_CROSS_NIC": "0", "NCCL_IB_MERGE_NICS": "0"},
    # Each peer is behind another NIC, so that rings have to cross, and NCCL must know which NIC reaches whom.
    "triangle": {
        "NCCL_CROSS_NIC": "1",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    },
    # No rank has a path to the one across: no trees. Two devices fit the handle that routing goes by, so merge them.
    "ring": {
        "NCCL_ALGO": "Ring",
        "NCCL_CROSS_NIC": "1",
        "NCCL_IB_MERGE_NICS": "1",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_NET_PLUGIN": "none",
    },
    # As for a pair: each half is in a subnet of its own, and nothing leads from one to the other. With a single rail the value
    # changes nothing. 106 is DSCP 26, the traffic class that is lossless.
    "switch": {"NCCL_CROSS_NIC": "0", "NCCL_IB_MERGE_NICS": "0", "NCCL_IB_TC": "106"},
}


def environment(plan: Plan, platform: str, engine: str, gid_index: int | None) -> dict[str, str]:
    """What the rank's engine and NCCL need to know of the rails. No index where no single one fits all devices."""
    hcas = [rail["hca"] for rail in plan["rails"] if rail["hca"]]
    env = {**_PLATFORM[platform], **_TOPOLOGY[plan["topology"]]}
    # "=" asks for the exact names: without it an entry is a prefix.
    env["NCCL_IB_HCA"] = "=" + ",".join(hcas)
    if gid_index is not None:
        env["NCCL_IB_GID_INDEX"] = str(gid_index)
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        env[name] = plan["interface"]
    env["VLLM_HOST_IP"] = plan["address"]
    if platform == "gb300" and len(hcas) > 1:
        env |= {"NCCL_IB_TC": "106", "NCCL_IB_QPS_PER_CONNECTION": "4"}
    if engine == "vllm":
        # Its NIXL connector moves KV caches by UCX, which otherwise takes any device.
        env["UCX_NET_DEVICES"] = ",".join(f"{hca}:1" for hca in hcas)
    if engine == "tensorfold":
        env["TF_ROCE_HCA"] = ",".join(hcas)
        if plan["topology"] == "ring":
            # Its library routes by the graph, one device a channel, and needs to know how long the subnets are.
            prefixes = {rail["prefixlen"] for rail in plan["rails"]}
            env |= {
                "NCCL_IB_MERGE_NICS": "0",
                "NCCL_GRAPH_FILE": GRAPH_FILE,
                "NCCL_IB_SUBNET_PREFIX_LEN": str(max(prefixes)),
                "TF_NCCL_RING": "1",
            }
    return dict(sorted(env.items()))


def graph(rails: Sequence[Rail], before: str, after: str) -> str:
    """NCCL's graph of one rank of a ring: each channel comes in from the rank before and goes out to the one after.

    NCCL numbers devices in the order in which the kernel found them, which is that of their names here: domain 0 first.
    """
    order = sorted((rail["hca"] or "" for rail in rails), key=lambda hca: ("P" in hca, hca))
    incoming = [order.index(rail["hca"] or "") for rail in rails if rail["peer"] == before]
    outgoing = [order.index(rail["hca"] or "") for rail in rails if rail["peer"] == after]
    channels = "".join(
        f'    <channel>\n      <net dev="{into}"/>\n      <gpu dev="0"/>\n      <net dev="{out}"/>\n    </channel>\n'
        for into, out in zip(incoming, outgoing, strict=False)
    )
    count = min(len(incoming), len(outgoing))
    return (
        '<graphs version="1">\n'
        f'  <graph id="0" pattern="4" crossnic="1" nchannels="{count}" speedintra="12" speedinter="12"'
        ' latencyinter="0" typeintra="LOC" typeinter="SYS" samechannels="0">\n'
        f"{channels}  </graph>\n</graphs>\n"
    )
