# ruff: noqa: E501
"""Line forms of NCCL 2.18 to 2.30, one fault or one form at a time, built on a log that is right."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.module_utils import _log_source, _nccl_log, _nccl_verdict

INFO = "spark-a:300:377 [0] NCCL INFO "
COMM = "ncclCommInitRank comm 0xab5c rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f01000 commId 0x5d0c - Init "
HCAS = "[0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]"


def log(
    *,
    hcas: str = HCAS,
    before: str = "",
    network: str = "IB",
    channels: tuple[str, ...] = ("0", "1"),
    complete: bool = True,
    after: str = "",
    pid: int = 300,
    bootstrap: str = "enp1s0f0np0:10.0.0.1<0>",
    comm: str = COMM,
) -> str:
    """A log of rank 0. ``before`` stands after the network was chosen, ``after`` at the end."""
    lines = [f"{INFO}Bootstrap: Using {bootstrap}", f"{INFO}NCCL version 2.28.9+cuda13.0"]
    if hcas:
        lines.append(f"{INFO}NET/IB : Using {hcas}; OOB {bootstrap}")
    lines += [f"{INFO}Using network {network}", f"{INFO}{comm}START", *filter(None, [before])]
    for channel in channels:
        lines.append(f"{INFO}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/{network}/{channel}")
        lines.append(f"{INFO}Channel 00/0 : 0[0] -> 1[0] [send] via NET/{network}/{channel}")
    if complete:
        lines += [f"{INFO}Connected all rings, use ring PXN 0 GDR 0", f"{INFO}{comm}COMPLETE"]
    return "\n".join([*lines, *filter(None, [after])]).replace(":300:", f":{pid}:") + "\n"


def warn(text: str, where: str = "misc/ibvwrap.cc:301") -> str:
    return f"\n[2026-11-02 10:14:01] spark-a:300:377 [0] {where} NCCL WARN {text}"


def judge(*texts: str, platform: str = "gb10", **options: Any) -> dict[str, Any]:
    logs = [_nccl_log.read(_log_source.from_text(f"log{number}", text)) for number, text in enumerate(texts)]
    return _nccl_verdict.judge(logs, platform, **options)


def decision(*texts: str, **options: Any) -> tuple[str, str]:
    summary = judge(*texts, **options)["summary"]
    return summary["verdict"], summary["cause"]


def test_the_base_is_right() -> None:
    assert decision(log()) == ("pass", "ok_gdr_not_expected_on_gb10")
    assert decision(log(), platform="generic") == ("pass", "ok")


QP = "on dev rocep1s0f0:1, curr state INIT, next state RTR, local GID index 3, "


@pytest.mark.parametrize(
    ("warning", "code", "cause"),
    [
        # NCCL 2.18: text only; 2.21: errno at the end; 2.28: number first
        ("Call to ibv_modify_qp failed with error No data available", "ibv_modify_qp", "gid_index_empty"),
        ("Call to ibv_modify_qp failed with error No data available errno 61", "ibv_modify_qp", "gid_index_empty"),
        (f"Call to ibv_modify_qp failed with 61 No data available, {QP}local GID ::, remote GID ::", "ibv_modify_qp", "gid_index_empty"),
        (f"Call to ibv_modify_qp failed with 22 Invalid argument, {QP}local GID ::, remote GID fe80::1", "ibv_modify_qp", "gid_index_empty"),
        ("Call to ibv_modify_qp failed with error Connection timed out", "ibv_modify_qp", "gid_pair_has_no_path"),
        ("Call to ibv_modify_qp failed with error Connection timed out errno 110", "ibv_modify_qp", "gid_pair_has_no_path"),
        (f"Call to ibv_modify_qp failed with 113 No route to host, {QP}local GID fe80::1, remote GID fe80::2", "ibv_modify_qp", "gid_pair_has_no_path"),
        ("Call to ibv_create_cq failed with error Cannot allocate memory", "ibv_create_cq", "memlock_limit"),
        ("Call to ibv_create_qp failed with error Cannot allocate memory", "ibv_create_qp", "memlock_limit"),
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", "ibv_reg_mr", "rdma_memory_registration_failed"),
        ("Call to ibv_reg_mr_iova2 failed with error Bad address", "ibv_reg_mr_iova2", "rdma_memory_registration_failed"),
        ("NET/MLX5: Call to mlx5dv_reg_dmabuf_mr failed with error Unknown error 524", "mlx5dv_reg_dmabuf_mr", "rdma_memory_registration_failed"),
        ("Call to ibv_query_port failed with error Permission denied errno 13", "ibv_query_port", "verbs_call_failed"),
        ("Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 23007", "version_mismatch", "nccl_version_mismatch"),
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device f01000", "duplicate_gpu", "duplicate_gpu"),
        ("Cuda failure 'out of memory'", "cuda_failure", "cuda_failure"),
        ("Bootstrap Root : rank 1 of 2 ranks has already checked in", "bootstrap_mismatch", "ranks_disagree"),
        ("socketStartConnect: Connect to 10.0.0.2<45873> failed : No route to host", "connect_failed", "bootstrap_connect_failed"),
        ("socketPollConnect: connect to 10.0.0.2<45873> returned Connection refused, exceeded error retry count after 35 attempts",
         "connect_failed", "bootstrap_connect_failed"),
        ("socketStartConnect: exceeded retries (20000)", "connect_failed", "bootstrap_connect_failed"),
        ("socketPollConnect: connect to 127.0.0.1<45873> returned Connection refused, exceeded error retry count after 35 attempts",
         "connect_failed", "bootstrap_on_loopback"),
        ("ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)",
         "no_socket_address", "socket_ifname_has_no_address"),
        ("NET/IB : No IP interface found.", "no_socket_address", "socket_ifname_has_no_address"),
        # from 2.29 on the functions have other names
        ("ncclOsSocketPollConnect to 10.0.0.2<45873> failed with error Connection refused", "connect_failed", "bootstrap_connect_failed"),
        ("ncclOsSocketStartConnect: connect to 10.0.0.2<45873> failed : No route to host", "connect_failed", "bootstrap_connect_failed"),
        ("Net : error encountered when getting address info : Name or service not known", "connect_failed", "bootstrap_connect_failed"),
        ("no device found matching exactly enp1s0f9np9, verify NCCL_OOB_NET_IFNAME", "no_socket_interface", "socket_ifname_not_found"),
        ("ibv_post_send() failed with error Invalid argument, Bad WR 0x7f10, First WR 0x7f10", "ibv_post_send", "verbs_call_failed"),
        ("Call to ibv_poll_cq() returned -1", "ibv_poll_cq", "verbs_call_failed"),
        ("Call to ibv_create_qp failed: Cannot allocate memory", "ibv_create_qp", "memlock_limit"),
        ("Message truncated : received 1024 bytes instead of 256", "message_truncated", "ranks_disagree"),
        ("Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes", "shm_failed", "shm_too_small"),
        ("Error while creating shared memory segment /dev/shm/nccl-AbCdEf (size 9637888), error: No space left on device (28)",
         "shm_failed", "shm_too_small"),
        ("Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.",
         "duplicate_gpu", "duplicate_gpu"),
        ("NET/IB : Local mergedDev rocep1s0f0+roceP2p1s0f0 has a different number of devices=2 as remote rocep1s0f0 1",
         "devices_differ", "devices_differ"),
        ("Detected mixed local Net device counts across ranks (min 1, max 2). Set NCCL_IGNORE_NET_MISMATCH=1 to continue.",
         "devices_differ", "devices_differ"),
        ("nvmlInit_v2() failed: Driver/library version mismatch", "cuda_failure", "cuda_failure"),
        ("something that no version has said so far", "unrecognized", "unrecognized_warning"),
    ],
)  # fmt: skip
def test_a_fault_during_init(warning: str, code: str, cause: str) -> None:
    result = judge(log(complete=False, after=warn(warning)))
    assert (result["summary"]["verdict"], result["summary"]["cause"]) == ("fail", cause)
    assert result["summary"]["warnings"] == [code]
    [detail] = result["warning_lines"]
    assert (detail["code"], detail["line"]) == (code, 11)
    assert warning.split()[0] in detail["text"]
    assert result["checks"][0]["evidence"][0].startswith("log0:11: ")
    assert result["checks"][0]["remedy"]


COMPLETION = "Got completion from peer 10.0.0.2<44206> with "


@pytest.mark.parametrize(
    ("warning", "code", "verdict", "cause"),
    [
        # 2.18; 2.21; 2.27 names the HCA; 2.28 names status and opcode; 2.30 drops the size
        (f"NET/IB : {COMPLETION}error 12, opcode 0, len 0, vendor err 129 (Send)", "ib_completion_12", "fail", "roce_completion_timeout"),
        (f"NET/IB : {COMPLETION}status=12 opcode=0 len=0 vendor err 129 (Send)", "ib_completion_12", "fail", "roce_completion_timeout"),
        (f"NET/IB: {COMPLETION}status=12 opcode=0 len=0 vendor err 129 (Send) hca rocep1s0f0", "ib_completion_12", "fail", "roce_completion_timeout"),
        (f"NET/IB: {COMPLETION}status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send hca rocep1s0f0",
         "ib_completion_12", "fail", "roce_completion_timeout"),
        (f"NET/IB: {COMPLETION}status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129  hca mlx5_1",
         "ib_completion_12", "fail", "roce_completion_timeout"),
        (f"NET/IB: {COMPLETION}status=IBV_WC_REM_ACCESS_ERR(10) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=136  hca mlx5_1",
         "ib_completion_10", "fail", "rdma_completion_error"),
        ("NET/IB : mlx5_1:1 GID table changed", "gid_table_changed", "warn", "gid_table_changed"),
        ("NET/IB : Got async event : GID table change", "gid_table_changed", "warn", "gid_table_changed"),
        ("NET/IB : Got async event : port error", "port_error", "warn", "link_flap"),
        ("NET/IB : rocep1s0f0:1 Got async event : port error", "port_error", "warn", "link_flap"),
        ("NET/IB : rocep1s0f0:1 Got non-fatal async event: port error(10)", "port_error", "warn", "link_flap"),
        # 2.23 to 2.27 know no name for the event 18
        ("NET/IB : rocep1s0f0:1 Got async error event: port error", "port_error", "warn", "link_flap"),
        ("NET/IB : rocep1s0f0:1 unknown event type (18)", "gid_table_changed", "warn", "gid_table_changed"),
        ("NET/IB : Got async event : local catastrophic error", "ib_async_fatal", "fail", "rdma_device_failed"),
        ("NET/IB : rocep1s0f0:1 Got async event : local work queue catastrophic error", "ib_async_fatal", "fail", "rdma_device_failed"),
        ("NET/IB : rocep1s0f0:1 Got async event : CQ error", "ib_async_fatal", "fail", "rdma_device_failed"),
        ("NET/IB : rocep1s0f0:1 Got async error event: local access violation work queue error",
         "ib_async_fatal", "fail", "rdma_device_failed"),
        ("NET/IB : rocep1s0f0:1 async fatal event on QP (0x7f10): local QP operation error", "ib_async_fatal", "fail", "rdma_device_failed"),
        ("NET/IB : rocep1s0f0:1 async fatal event: local catastrophic error", "ib_async_fatal", "fail", "rdma_device_failed"),
        ("socketProgress: Connection closed by remote peer 10.0.0.2<40412>", "peer_closed", "fail", "peer_rank_died"),
        ("socketProgressOpt: Call to recv from 10.0.0.2<40412> failed : Connection reset by peer", "peer_closed", "fail", "peer_rank_died"),
        ("ncclOsSocketProgressOpt: Call to recv from 10.0.0.2<40412> failed : Connection reset by peer", "peer_closed", "fail", "peer_rank_died"),
        ("something that no version has said so far", "unrecognized", "warn", "unrecognized_warning"),
    ],
)  # fmt: skip
def test_a_fault_after_init(warning: str, code: str, verdict: str, cause: str) -> None:
    result = judge(log(after=warn(warning, "transport/net_ib.cc:1696")))
    assert (result["summary"]["verdict"], result["summary"]["cause"]) == (verdict, cause)
    assert result["summary"]["warnings"] == [code]


def test_the_worst_fault_decides_and_the_first_of_equals() -> None:
    flap = warn("NET/IB : rocep1s0f0:1 Got non-fatal async event: port error(10)")
    timeout = warn(f"NET/IB: {COMPLETION}status=IBV_WC_RETRY_EXC_ERR(12) opcode=0 vendor_err=129")
    closed = warn("socketProgress: Connection closed by remote peer 10.0.0.2<40412>")
    assert decision(log(after=flap + "\n" + timeout + "\n" + closed)) == ("fail", "roce_completion_timeout")
    assert decision(log(after=closed + "\n" + timeout)) == ("fail", "peer_rank_died")


@pytest.mark.parametrize(
    "warning",
    [
        "NET/IB : mlx5_1:1 Got non-fatal async event: client reregistration(17)",
        "NET/IB : mlx5_1:1 unknown event type (19)",
        "NCCL_WORK_FIFO_BYTES=100 is being ignored because it is not a power of 2.",
        "minCTAs 64 is larger than #channels upper limit 32, cap it to 32",
        "NET/Socket : NCCL_SOCKET_NTHREADS is greater than the maximum allowed, setting to 16",
        "MNNVL is not supported on this system",
        "Cannot initialize CollNet, using point-to-point network instead",
    ],
)
def test_warnings_that_do_not_matter(warning: str) -> None:
    result = judge(log(after=warn(warning)))
    assert result["summary"]["verdict"] == "pass"
    assert (result["summary"]["warn_lines"], result["summary"]["warnings"]) == (1, [])


def test_a_flood_of_warnings_is_counted_by_what_they_say() -> None:
    """They differ in numbers, and numbers can change what they mean."""
    many = "".join(
        warn(f"NET/IB: {COMPLETION}status={status} opcode={n} len=0 vendor err {n}")
        for n in range(1000)
        for status in (5, 12)
    )
    details = judge(log(after=many))["warning_lines"]
    assert [(item["code"], item["count"]) for item in details] == [
        ("ib_completion_5", 1000),
        ("ib_completion_12", 1000),
    ]


def test_a_peer_that_ends_after_us_is_no_fault() -> None:
    destroyed = f"{INFO}comm 0xab5c rank 0 nranks 2 cudaDev 0 busId f01000 - Destroy COMPLETE\n"
    after = destroyed + warn("socketProgress: Connection closed by remote peer 10.0.0.2<40412>")
    assert decision(log(after=after))[0] == "pass"


def test_the_watchdog_of_pytorch() -> None:
    after = (
        "[rank0]:[E1102 10:24:00.123456 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=4096, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
    )
    assert decision(log(after=after)) == ("fail", "collective_timeout")
    ended = "[rank0]:[F1102 ProcessGroupNCCL.cpp:1250] [PG 0 Rank 0] Terminating the process after attempting to dump debug info, due to collective timeout or exception."
    assert decision(log(after=ended)) == ("fail", "collective_timeout")


def test_gloo_has_no_address() -> None:
    text = "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: enp1s0f0np0\n"
    assert decision(text) == ("fail", "socket_ifname_has_no_address")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("NET/IB : No device found.", "no_rdma_device_in_container"),
        ("Failed to open libibverbs.so[.1]", "libibverbs_missing_in_image"),
        ("Count not open libibverbs.so.1", "libibverbs_missing_in_image"),
        ("NCCL_IB_DISABLE set by environment to 1.", "ib_disabled_by_env"),
        ("Comm config netName reset to NCCL_NET=Socket", "ib_disabled_by_env"),
        ("Some line", "socket_transport"),
    ],
)
@pytest.mark.parametrize("channels", [("0",), ()], ids=["channels", "no-channel"])
def test_why_sockets(line: str, cause: str, channels: tuple[str, ...]) -> None:
    text = log(hcas="", before=INFO + line, network="Socket", channels=channels)
    assert decision(text) == ("fail", cause)


def test_a_missing_development_library_is_no_fault() -> None:
    text = log(before=f"{INFO}Count not open libibverbs.so")
    assert decision(text)[0] == "pass"


def test_a_probe_that_fails_is_no_fault() -> None:
    text = log(before=f"{INFO}Call to ibv_query_ece failed with error Operation not supported errno 95")
    assert decision(text)[0] == "pass"


def test_a_connection_that_is_still_retried() -> None:
    retry = f"{INFO}Call to ibv_modify_qp failed with 110 Connection timed out, {QP}local GID ::ffff:10.0.0.1, remote GID ::ffff:10.1.0.1, retrying 3/35"
    assert decision(log(complete=False, after=retry)) == ("fail", "gid_pair_has_no_path")


def test_ib_disable_zero_is_no_reason() -> None:
    text = log(hcas="", before=f"{INFO}NCCL_IB_DISABLE set by environment to 0.", network="Socket")
    assert decision(text) == ("fail", "socket_transport")


def test_loopback_bootstrap() -> None:
    text = log(bootstrap="lo:127.0.0.1<0>", channels=(), complete=False)
    assert decision(text) == ("fail", "bootstrap_on_loopback")


def test_link_local_bootstrap() -> None:
    text = log(bootstrap="enp1s0f0np0:fe80::4ebb:47ff:fe2c:1%enp1s0f0np0<0>", channels=(), complete=False)
    assert decision(text) == ("fail", "socket_ifname_has_no_address")


def test_connection_attempts_matter_only_until_one_succeeds() -> None:
    retry = f"{INFO}{{}}ocketPollConnect: connect to 10.0.0.2<45873> returned Connection refused, retrying (3/34) after sleep for 300 msec"
    for form in map(retry.format, ("s", "ncclOsS")):
        assert decision(log(before=form)) == ("pass", "ok_gdr_not_expected_on_gb10")
        assert decision(log(before=form, channels=(), complete=False)) == ("fail", "bootstrap_connect_failed")


@pytest.mark.parametrize(
    ("listed", "hcas"),
    [
        ("[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE", ["mlx5_0", "mlx5_1"]),
        ("[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [RO]", ["mlx5_0", "mlx5_1"]),  # 2.20 to 2.23
        ("[0]mlx5_0+mlx5_1:1/RoCE [RO]", ["mlx5_0", "mlx5_1"]),
        (
            "[0]mlx5_0:1:0:1/RoCE [1]mlx5_1:1::1/RoCE [2]mlx5_2:1:2/RoCE",
            ["mlx5_0", "mlx5_1", "mlx5_2"],
        ),  # 2.30 rail:plane
        ("[0]mlx5_0_dma:1/RoCE [1]mlx5_1_dma:1/RoCE [RO]", ["mlx5_0", "mlx5_1"]),
        ("[RO]", []),
    ],
)
def test_hcas(listed: str, hcas: list[str]) -> None:
    assert judge(log(hcas=listed))["summary"]["hcas"] == hcas


@pytest.mark.parametrize(
    ("suffix", "gdr"),
    [
        ("", False),
        ("/GDRDMA", True),
        ("/GDRDMA(PCI)", True),
        ("/GDRDMA/Shared", True),
        ("/Shared", False),
        ("(1)/GDRDMA", True),
    ],
)
def test_channel_suffixes(suffix: str, gdr: bool) -> None:
    summary = judge(log(channels=(f"0{suffix}",)))["summary"]
    assert (summary["gdr"], summary["net_channels"]["ib"]) == (gdr, 2)


def test_plugin_names_hold_blanks() -> None:
    summary = judge(log(network="NCCL RDMA Plugin v10", channels=("0/GDRDMA",)))["summary"]
    assert (summary["network"], summary["transport"], summary["gdr"]) == (["NCCL RDMA Plugin v10"], "ib", True)


@pytest.mark.parametrize(
    ("comm", "completed"),
    [
        ("comm 0xab5c rank 0 nranks 2 cudaDev 0 busId f01000 commId 0x5d0c - Init ", 1),
        ("[Rank 0] ncclCommInitRankConfig comm 0xab5c rank 0 nranks 2 cudaDev 0 busId f01000 commId 0x5d0c - Init ", 1),
        ("ncclCommSplit comm 0xab5c rank 0 nranks 2 cudaDev 0 busId f01000 parent 0xab color 0 key 0- Init ", 1),
        (
            "ncclCommSplit comm 0xab5c rank 0 nranks 2 cudaDev 0 busId f01000 parent 0xab childCount 1 color 0 key 0- Init ",
            1,
        ),
    ],
)
def test_forms_of_communicators(comm: str, completed: int) -> None:
    summary = judge(log(comm=comm))["summary"]
    assert summary["communicators"] == {"started": 1, "completed": completed, "aborted": 0}
    assert summary["ranks"] == [0]


def test_an_aborted_communicator_is_no_success() -> None:
    after = f"{INFO}comm 0xab5c rank 0 nranks 2 cudaDev 0 busId f01000 - Abort COMPLETE"
    result = judge(log(after=after))["summary"]
    assert (result["verdict"], result["cause"], result["init_complete"]) == ("fail", "communicator_aborted", False)


def test_gpudirect_is_judged_by_platform() -> None:
    plain, direct = log(hcas="[0]mlx5_1:1/RoCE"), log(hcas="[0]mlx5_1:1/RoCE", channels=("0/GDRDMA",))
    assert decision(plain, platform="gb300") == ("warn", "gdr_disabled")
    assert decision(direct, platform="gb300") == ("pass", "ok")
    assert decision(direct, platform="gb10") == ("pass", "ok")
    assert decision(plain, platform="generic") == ("pass", "ok")


@pytest.mark.parametrize(
    "line",
    [
        "dlvsym failed on mlx5dv_get_data_direct_sysfs_path - libmlx5.so: undefined symbol, version MLX5_1.25 version MLX5_1.25",
        "Failed to open libmlx5.so[.1]",
        "NET/IB : Failed to open mlx5dv symbols. Advance features like CX-8 Direct-NIC will be disabled.",
    ],
)
def test_data_direct_matters_on_gb300_only(line: str) -> None:
    text = log(hcas="[0]mlx5_1:1/RoCE", before=INFO + line, channels=("0/GDRDMA",))
    assert decision(text, platform="gb300") == ("warn", "data_direct_unavailable_in_image")
    result = judge(text, platform="gb10")["summary"]
    assert (result["verdict"], result["warnings"]) == ("pass", [])


@pytest.mark.parametrize("colon", [":", " "])  # 2.27; from 2.28 on
def test_data_direct_devices(colon: str) -> None:
    before = f"{INFO}NET/IB: Data Direct DMA Interface is detected for device{colon}mlx5_1"
    summary = judge(log(hcas="[0]mlx5_1_dma:1/RoCE", before=before, channels=("0/GDRDMA",)), platform="gb300")[
        "summary"
    ]
    assert (summary["data_direct"], summary["hcas"], summary["cause"]) == (["mlx5_1"], ["mlx5_1"], "ok_data_direct")


def test_a_subnet_override_that_collapses_devices() -> None:
    override = f"{INFO}NET/IB: Subnet-aware routing: overriding dev 1 with dev 0"
    assert decision(log(before=override)) == ("warn", "subnet_override_collapses_devices")
    assert decision(log(before=override, channels=("0",))) == ("warn", "subnet_override_collapses_devices")


def test_a_merged_device_uses_both_halves() -> None:
    before = (
        f"{INFO}NET/IB : Made virtual device [2] name=rocep1s0f0+roceP2p1s0f0 speed=400000 ndevs=2 rail=-1 plane=-1\n"
        f"{INFO}NET/IB: Subnet-aware routing: overriding dev 0 with dev 2"
    )
    assert decision(log(before=before, channels=("2",))) == ("pass", "ok_gdr_not_expected_on_gb10")


def test_restart_of_the_same_rank() -> None:
    bad = log(complete=False, after=warn("Call to ibv_modify_qp failed with error No data available errno 61"))
    good = log(pid=900)
    assert decision(bad + good) == ("pass", "ok_after_restart")
    assert decision(good + bad) == ("fail", "gid_index_empty")
    assert decision(good.replace("0x5d0c", "0x1111") + log(pid=901)) == ("pass", "ok_gdr_not_expected_on_gb10")


def test_restart_with_the_same_pid() -> None:
    """The pid of a container's process is often the same in each run."""
    bad = log(complete=False, channels=())
    assert decision(bad + log()) == ("pass", "ok_after_restart")
    assert decision(log() + bad) == ("fail", "init_not_complete")


def test_restart_over_several_files() -> None:
    """NCCL_DEBUG_FILE with %p makes a file of each start; the one last changed counts."""
    old = log(complete=False)
    logs = [
        _nccl_log.read(_log_source.Source("old", iter(old.encode().split(b"\n")), 1.0)),
        _nccl_log.read(_log_source.Source("new", iter(log(pid=900).encode().split(b"\n")), 2.0)),
    ]
    for order in (logs, logs[::-1]):
        summary = _nccl_verdict.judge(order, "gb10")["summary"]
        assert (summary["verdict"], summary["cause"]) == ("pass", "ok_after_restart")


def rank1(text: str) -> str:
    return text.replace("spark-a:300", "spark-b:400").replace("rank 0 nranks", "rank 1 nranks")


def test_a_pair_of_which_one_hangs() -> None:
    result = judge(log(complete=False), rank1(log()))
    assert (result["summary"]["verdict"], result["summary"]["cause"]) == ("fail", "init_not_complete")
    assert "while rank 1 did" in result["checks"][0]["found"]
    assert result["summary"]["pair_verdict"] == "fail"
    hangs, whole = result["files"]
    assert (hangs["verdict"], hangs["pair_verdict"]) == ("fail", "fail")
    assert (whole["verdict"], whole["cause"], whole["pair_verdict"]) == (
        "pass",
        "ok_this_rank_but_pair_missing_rank0",
        "fail",
    )
    other = judge(log(), rank1(log(complete=False)))["files"][0]
    assert (other["verdict"], other["cause"]) == ("pass", "ok_this_rank_but_pair_missing_peer")


def test_a_pair_whose_containers_have_one_name_and_pid() -> None:
    def alike(text: str) -> str:
        return text.replace("spark-b:400", "spark-a:300")

    assert decision(log(), alike(rank1(log()))) == ("pass", "ok_gdr_not_expected_on_gb10")
    assert decision(log(complete=False), alike(rank1(log()))) == ("fail", "init_not_complete")
    assert decision(log(), alike(rank1(log(network="Socket", hcas="")))) == ("fail", "one_communicator_on_sockets")


def test_channels_without_communicators_prove_too_little() -> None:
    """NCCL_DEBUG_SUBSYS=NET; a log whose begin was rotated away still has their end."""
    net = "\n".join(line for line in log().split("\n") if "Init " not in line)
    assert decision(net) == ("inconclusive", "debug_level_too_low")
    end = log()[log().index("Channel") - len(INFO) :]
    assert decision(end)[0] == "pass"


def test_a_pair_of_different_libraries() -> None:
    assert decision(log(), rank1(log()).replace("2.28.9", "2.30.7")) == ("fail", "nccl_version_mismatch")


def test_two_libraries_in_each_process() -> None:
    """PyTorch's library and the one that VLLM_NCCL_SO_PATH names: both count, and neither takes the other's place."""
    engine = log(network="Socket", hcas="").replace("2.28.9", "2.30.7").replace("0x5d0c", "0x6e1d")
    both = log() + engine
    assert decision(both) == ("fail", "one_communicator_on_sockets")
    right = log() + log().replace("2.28.9", "2.30.7").replace("0x5d0c", "0x6e1d")
    assert decision(right, rank1(right)) == ("pass", "ok_gdr_not_expected_on_gb10")


def test_stale_files_do_not_count() -> None:
    source = _log_source.Source("left-over", iter(log(network="Socket").encode().split(b"\n")), 100.0)
    result = _nccl_verdict.judge([_nccl_log.read(source)], "gb10", since=200.0)
    assert (result["summary"]["verdict"], result["summary"]["cause"]) == ("inconclusive", "stale_log")
    assert result["files"][0]["stale"]
    assert _nccl_verdict.judge([_nccl_log.read(source)], "gb10", since=50.0)["files"][0]["stale"] is False


def test_ray_folds_lines() -> None:
    folded = (
        log()
        .replace("Init START", "Init START [repeated 3x across cluster]")
        .replace("Using network IB", "Using network IB [repeated 3x across cluster]")
    )
    summary = judge(folded)["summary"]
    assert summary["network"] == ["IB"]
    assert summary["communicators"] == {"started": 3, "completed": 1, "aborted": 0}


def test_a_communicator_of_one_rank_proves_nothing() -> None:
    text = log(channels=(), comm=COMM.replace("nranks 2", "nranks 1"))
    assert decision(text) == ("inconclusive", "no_cross_node_channel")


def test_a_network_that_was_chosen_and_not_used_proves_nothing() -> None:
    summary = judge(log(channels=()))["summary"]
    assert (summary["transport"], summary["transport_from"]) == ("ib", "network_line")
    assert (summary["verdict"], summary["cause"]) == ("inconclusive", "no_channel_yet")


@pytest.mark.parametrize(
    ("text", "platform"),
    [
        (log(), "gb10"),
        (log(hcas="[0]mlx5_1:1/RoCE", bootstrap="cx8r1:192.168.101.1<0>"), "gb300"),
        (log(hcas="[0]mlx5_0:1/IB", bootstrap="eth0:10.0.0.1<0>"), "generic"),
    ],
)
def test_the_platform_is_guessed_from_names(text: str, platform: str) -> None:
    assert judge(text, platform=None)["platform"] == platform  # type: ignore[arg-type]


def test_writers_that_do_not_wait_for_each_other() -> None:
    one, two = log().splitlines(), rank1(log()).splitlines()
    glued = [a + b for a, b in zip(one[1:], two[1:], strict=True)]
    mixed = "\n".join([one[0], two[0], *glued])
    summary = judge(mixed)["summary"]
    assert summary["ranks"] == [0, 1]
    assert summary["communicators"] == {"started": 2, "completed": 2, "aborted": 0}
    assert summary["net_channels"]["ib"] == 8
