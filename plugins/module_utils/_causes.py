# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every cause code that a check can carry: what it means, what it looks like, how to cure it.

One table: the modules take their remedies from it, and docs/checks.md is made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._check import Check, Verdict, check


class Cause(NamedTuple):
    """``looks`` is what a person sees in the log or the tool. ``remedy`` is an imperative sentence, empty when all is right.

    A word in braces is filled in by the check.
    """

    meaning: str
    looks: str
    remedy: str = ""


# Causes that more than one module finds.
_OK = Cause("Right.", "all that is expected, and nothing else")
_OK_AFTER_RESTART = Cause(
    "Right now; an earlier start in the same log failed.", "a fault, then a start that got through"
)
_SHM_TOO_SMALL = Cause(
    "The container's shared memory is full.",
    "Bus error, No space left on device: /dev/shm; NCCL's Error while creating shared memory segment",
    "Raise shm-size in the recipe's container section, or use ipc: host.",
)

NCCL = {
    "ok": _OK,
    "ok_data_direct": Cause(
        "Right, and the NICs reach GPU memory over their own PCIe path.",
        "Data Direct DMA Interface is detected for device; channels via NET/IB/0/GDRDMA",
    ),
    "ok_gdr_not_expected_on_gb10": Cause(
        "Right; GB10 has no GPUDirect RDMA, so that channels without it are normal there.",
        "channels via NET/IB/0 without /GDRDMA",
    ),
    "ok_after_restart": _OK_AFTER_RESTART,
    "ok_this_rank_but_pair_missing_rank0": Cause(
        "This file is whole, and rank 0 never finished the same communicator.",
        "Init COMPLETE here, Init START alone in the log of rank 0",
        "Look at the log of rank 0: it hangs, so this rank waits for it.",
    ),
    "ok_this_rank_but_pair_missing_peer": Cause(
        "This file is whole, and another rank never finished the same communicator.",
        "Init COMPLETE here, Init START alone in the log of a peer",
        "Look at the log of that rank: it hangs, so this rank waits for it.",
    ),
    "no_log": Cause(
        "No file has the name that was asked for.",
        "a glob pattern that matches nothing",
        "Look at NCCL_DEBUG_FILE of the rank: the path, the folder's mount into the container, and whether the rank ever started.",
    ),
    "no_known_line": Cause(
        "The file holds nothing that is known.",
        "no line of NCCL, of an engine, of nccl-tests or perftest",
        "Save the engine's log and the files of NCCL_DEBUG_FILE, and leave everything else out of the folder.",
    ),
    "debug_level_too_low": Cause(
        "The log holds nothing about networks or communicators, and proves nothing.",
        "an empty file, or only the version line, as NCCL_DEBUG=WARN gives",
        "Set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV, and start again.",
    ),
    "no_channel_yet": Cause(
        "Communicators are up, but no channel has been connected so far.",
        "Init COMPLETE without any line Channel ... via, as before the first collective from NCCL 2.22 on",
        "Send a request, and read the log again.",
    ),
    "stale_log": Cause(
        "The log was last changed before the start that is being judged.",
        "a file left over in the log folder",
        "Read the log of this start; set NCCL_DEBUG_FILE to a folder that is new with each start.",
    ),
    "no_cross_node_channel": Cause(
        "Only channels inside one host: it talks to itself.",
        "via P2P/ or via SHM/ only; or a communicator of one rank",
        "Spread the ranks over the hosts before claiming anything of the network between them.",
    ),
    "init_not_complete": Cause(
        "A communicator was started and neither came up nor failed: a hang, or a log that was cut.",
        "Init START without Init COMPLETE",
        "Look at the logs of the other ranks for the first fault. If there is none, compare the arguments and the environment "
        "of all ranks, and see that each can reach the others on the interface of the line Bootstrap: Using.",
    ),
    "communicator_aborted": Cause(
        "A communicator was given up.",
        "Abort COMPLETE",
        "Look at the engine's log for the reason; the ranks abort when one of them fails.",
    ),
    "no_rdma_device_in_container": Cause(
        "NCCL found no RDMA device that it may use, and fell back to sockets or gave up.",
        "NET/IB : No device found.",
        "Give the container /dev/infiniband, the capability IPC_LOCK and memlock unlimited; see that NCCL_IB_HCA names "
        "devices that exist, and that their ports are up.",
    ),
    "libibverbs_missing_in_image": Cause(
        "The image lacks the RDMA libraries.",
        "Failed to open libibverbs.so[.1], from 2.30 on Count not open libibverbs.so.1",
        "Install rdma-core (libibverbs1, ibverbs-providers) in the image.",
    ),
    "ib_disabled_by_env": Cause(
        "A setting forbids RDMA.",
        "NCCL_IB_DISABLE set by environment to 1; NCCL_NET=Socket",
        "Remove NCCL_IB_DISABLE and NCCL_NET from the environment, /etc/nccl.conf and ~/.nccl.conf.",
    ),
    "socket_transport": Cause(
        "The ranks talk over TCP sockets, and the log does not say why.",
        "via NET/Socket/0",
        "Set NCCL_NET=IB, so that NCCL says why RDMA does not work instead of falling back.",
    ),
    "no_network_plugin": Cause(
        "NCCL could open no network at all.",
        "Failed to initialize any NET plugin; Error: network IB not found",
        "Unset NCCL_NET_PLUGIN and NCCL_NET, or give the image the plugin that they name.",
    ),
    "one_communicator_on_sockets": Cause(
        "Some channels run over RDMA and some over sockets.",
        "via NET/IB and via NET/Socket in the same process",
        "Set NCCL_NET=IB for every process of the engine, and see that none changes the environment before its own start.",
    ),
    "last_process_on_sockets": Cause(
        "An earlier start used RDMA, the last one sockets.",
        "via NET/IB of an older process above via NET/Socket of a newer one",
        "Compare the last start with the earlier one: a container without /dev/infiniband, another image, a port that went down.",
    ),
    "bootstrap_on_loopback": Cause(
        "The ranks are to meet on an address that no other host can reach.",
        "Bootstrap: Using lo:127.0.0.1; connect to 127.0.0.1",
        "Set NCCL_SOCKET_IFNAME and VLLM_HOST_IP to an interface and address of the fabric.",
    ),
    "bootstrap_connect_failed": Cause(
        "A rank could not reach its peer out of band.",
        "connect to ... returned Connection refused, exceeded error retry count; No route to host",
        "See that the peer runs, that NCCL_SOCKET_IFNAME is in the same subnet on all ranks, and that no firewall is between them.",
    ),
    "socket_ifname_not_found": Cause(
        "The interface that NCCL_SOCKET_IFNAME names does not exist, or is down.",
        "Bootstrap : no socket interface found",
        "Set NCCL_SOCKET_IFNAME to an interface of this host that is up (names differ between hosts).",
    ),
    "socket_ifname_has_no_address": Cause(
        "The interface for out-of-band traffic has no usable address.",
        "connecting to address ... with family 0 is neither AF_INET(2) nor AF_INET6(10); NET/IB : No IP interface found; "
        "Gloo's Unable to find address for; a bootstrap on a link-local address",
        "Give the interface its address (role fabric), or name another one in NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME.",
    ),
    "gid_index_empty": Cause(
        "The GID at the index in use is empty on one side.",
        "Call to ibv_modify_qp failed with 61 No data available; local GID ::",
        "Unset NCCL_IB_GID_INDEX, or set for each device the index of its own RoCE v2 address; see that both ends have addresses.",
    ),
    "gid_table_changed": Cause(
        "An address of the device changed while connections were up; connections that use an old GID break.",
        "NET/IB : mlx5_1:1 GID table changed",
        "Keep addresses of the fabric static (no DHCP, no privacy addresses), and restart the ranks.",
    ),
    "gid_pair_has_no_path": Cause(
        "The two GIDs of a connection are on networks that do not reach each other.",
        "Call to ibv_modify_qp failed with 110 Connection timed out, with GIDs of different subnets",
        "Give each cable its own subnet, the same at both ends. On rings use NCCL 2.30.7 or newer with "
        "NCCL_IB_SUBNET_AWARE_ROUTING=1.",
    ),
    "roce_completion_timeout": Cause(
        "The peer no longer answered on an established connection.",
        "Got completion from peer ... status=12, from 2.28 on IBV_WC_RETRY_EXC_ERR(12)",
        "See whether the peer is alive, its port up and its GID unchanged; on a switch look for packet loss (PFC or ECN).",
    ),
    "rdma_completion_error": Cause(
        "A transfer failed on an established connection.",
        "Got completion from peer ... with a status other than 12",
        "Look at the first such line over all ranks. Status 4 or 10 points at memory registration or ACS, 5 follows another fault.",
    ),
    "rdma_device_failed": Cause(
        "The RDMA device reported a fatal event.",
        "async fatal event",
        "Look at the kernel log of the host; reset the device or the host.",
    ),
    "link_flap": Cause(
        "The link of a port went down while it was in use.",
        "Got async event : port error, often followed by port active",
        "Reseat or replace the cable, and look at the link counters of both ends.",
    ),
    "peer_rank_died": Cause(
        "The peer closed its connection: it ended or was killed.",
        "Connection closed by remote peer; Connection reset by peer",
        "Look at the log of that rank for the first fault.",
    ),
    "collective_timeout": Cause(
        "A collective operation did not end in time.",
        "Watchdog caught collective operation timeout",
        "Find the rank that did not take part: look for the last line of each rank, and for hosts that swap or have stalled.",
    ),
    "memlock_limit": Cause(
        "The process may not lock memory for the RDMA device.",
        "Call to ibv_create_cq failed with error Cannot allocate memory",
        "Run the container with --ulimit memlock=-1 and --cap-add IPC_LOCK.",
    ),
    "rdma_memory_registration_failed": Cause(
        "Memory could not be registered with the RDMA device.",
        "Call to ibv_reg_mr_iova2 failed; Call to mlx5dv_reg_dmabuf_mr failed",
        "Set memlock to unlimited. On DGX Spark with kernel 7.0 boot with kho=off; errno 524 on DGX Station is the ACS policy.",
    ),
    "verbs_call_failed": Cause(
        "A call to the RDMA library failed.",
        "Call to ibv_... failed",
        "Read the call and its error in the evidence, and the kernel log of the host.",
    ),
    "nccl_version_mismatch": Cause(
        "The ranks run different NCCL libraries.",
        "Mismatched NCCL version detected",
        "Run the same image on every rank, and set VLLM_NCCL_SO_PATH on all ranks or on none.",
    ),
    "ranks_disagree": Cause(
        "Ranks do not agree on their numbers, or on what they send each other.",
        "Bootstrap Root : mismatch in rank count; rank 1 of 2 ranks has already checked in; Message truncated",
        "Stop every rank, leftovers included, and start them with the same arguments and different ranks.",
    ),
    "devices_differ": Cause(
        "The RDMA devices of two ranks cannot be paired: their number or their kind differs.",
        "has a different number of devices; incompatible devices; Detected mixed local Net device counts",
        "Name as many devices of one kind in NCCL_IB_HCA on every rank, and set NCCL_IB_MERGE_NICS alike.",
    ),
    "shm_too_small": _SHM_TOO_SMALL,
    "duplicate_gpu": Cause(
        "Two ranks share one GPU.",
        "Duplicate GPU detected; Multiple ranks are using the same GPU",
        "Give every rank its own GPU.",
    ),
    "cuda_failure": Cause(
        "The GPU or its driver failed.",
        "Cuda failure",
        "Look for Xid lines in the kernel log; free GPU memory that another process holds.",
    ),
    "gdr_disabled": Cause(
        "GPUDirect RDMA is off where the machine has it: transfers take the way through host memory.",
        "channels via NET/IB/0 without /GDRDMA on GB300",
        "Set NCCL_NET_GDR_LEVEL=5 (SYS), unset NCCL_NET_GDR_C2C=0, and see that the image's rdma-core knows DMA-BUF.",
    ),
    "data_direct_unavailable_in_image": Cause(
        "The image's libmlx5 is too old for Data Direct, so that ConnectX-8 is used below its means.",
        "dlvsym failed on mlx5dv_get_data_direct_sysfs_path; Failed to open libmlx5.so",
        "Use an image whose rdma-core has the symbol version MLX5_1.25, or mount libmlx5 and libibverbs of the host over its own.",
    ),
    "one_of_two_port_halves": Cause(
        "One PCIe half of a DGX Spark port is in use, which is half of its bandwidth.",
        "NET/IB : Using rocep1s0f0 without its twin roceP2p1s0f0",
        "Give both halves addresses in different subnets, and name both in NCCL_IB_HCA.",
    ),
    "subnet_override_collapses_devices": Cause(
        "Subnet-aware routing sends everything over fewer devices than there are.",
        "Subnet-aware routing: overriding dev 1 with dev 0, and no channel over dev 1",
        "Give every rail its own subnet, and match NCCL_IB_SUBNET_PREFIX_LEN to it.",
    ),
    "unrecognized_warning": Cause(
        "A warning that nobody has explained yet.",
        "NCCL WARN",
        "Read the evidence, and look at what stands around it in the log.",
    ),
}

PERFORMANCE = {
    "ok": _OK,
    "wrong_data_path_or_build": Cause(
        "Less than half of what the machines should reach.",
        "3 GB/s where 22 are expected: sockets, one lane, or a library without the right kernels",
        "Read the NCCL log of the run for the transport. Then look at speed and width of the link, and power-cycle a ConnectX-7 "
        "that gives about 13 Gb/s.",
    ),
    "bandwidth_below_threshold": Cause(
        "Less than the machines should reach, and on the right path.",
        "MTU 1500, one of two port halves, GPUDirect or Data Direct off, a busy host",
        "Set MTU 9000 at both ends, use both halves of the port, and measure again on idle hosts.",
    ),
    "wrong_results": Cause(
        "The collective returned wrong values.",
        "a #wrong column above 0; Out of bounds values : 12 FAILED",
        "Do not serve on this machine. Update driver and NCCL, then look at memory and link errors of each host.",
    ),
    "measurement_failed": Cause(
        "The tool could not measure.",
        "Couldn't connect to; Failed status 12; Test NCCL failure",
        "Read the evidence: a peer that does not run, another path (a GID, an MTU, a firewall), or an option of one side only.",
    ),
    "no_threshold": Cause(
        "Nothing says what this machine should reach.",
        "a platform other than gb10 and gb300",
        "Set min_busbw or min_gbps to what you expect.",
    ),
    "no_result": Cause(
        "The text holds no result.",
        "a run that was interrupted, or another tool's output",
        "Run the test to its end, and pass all that it prints.",
    ),
}

ENGINE = {
    "ok_after_restart": _OK_AFTER_RESTART,
    "no_engine_line": Cause(
        "The log holds no line of an engine.",
        "an empty log, or another program's",
        "Read the engine's own log: the journal of tandem-rank.service, or the container's output.",
    ),
    "no_kv_pool_line": Cause(
        "The log does not say how large the KV pool is.",
        "no KV cache size line, no vllm:cache_config_info",
        "Read the log of rank 0 from its start, or /metrics of the head.",
    ),
    "still_loading": Cause(
        "The start is under way and nothing is wrong with it so far.",
        "weights loading, compiling, capturing; a broadcast stall of some minutes is normal here",
        "Wait, and look again; role rank prints the progress.",
    ),
    "rank_without_api": Cause(
        "A rank without an API says neither when it serves nor how large the KV pool is.",
        "a headless rank, its KV cache made",
        "Read the log of the head.",
    ),
    "stopped": Cause(
        "The engine was stopped in order.", "Application shutdown complete", "Start it again if it should run."
    ),
    "kv_pool_smaller_than_max_model_len": Cause(
        "The KV cache cannot hold a single request of the maximum length.",
        "max seq len (...) ... GiB KV cache is needed, which is larger than the available",
        "Lower max-model-len to the estimated maximum, or give the KV cache more memory.",
    ),
    "kv_pool_below_wanted": Cause(
        "The KV pool holds fewer tokens than asked for.",
        "a KV cache size below min_tokens",
        "Give the KV cache more memory (gpu-memory-utilization or kv-cache-memory-bytes), or lower what you ask for.",
    ),
    "no_memory_for_kv": Cause(
        "Weights and activations leave nothing for the KV cache.",
        "No available memory for the cache blocks; Available KV cache memory: -0.3 GiB",
        "Raise gpu-memory-utilization, lower max-num-batched-tokens, or spread the model over more ranks.",
    ),
    "startup_free_memory_below_request": Cause(
        "Less memory is free at the start than gpu-memory-utilization asks for.",
        "Free memory on device (102.03/121.69 GiB) on startup is less than desired",
        "Free memory on the host (desktop session, page cache, an old container), or lower gpu-memory-utilization.",
    ),
    "rank_stalled": Cause(
        "One rank waits for another that no longer answers.",
        "No available shared memory broadcast block found, RPC call to sample_tokens timed out",
        "Look at the other ranks' logs and at the fabric's counters, then restart all ranks together.",
    ),
    "rendezvous_timeout": Cause(
        "The ranks did not find each other.",
        "1/2 clients joined; the client socket has timed out",
        "Start every rank, check that the master address answers from each host, and that no firewall stands between.",
    ),
    "ipc_removed_by_logind": Cause(
        "logind removed the engine's semaphores when a user logged out.",
        "SemLock._rebuild, then FileNotFoundError: [Errno 2] No such file or directory",
        "Run the engine as a system service, or set RemoveIPC=no in logind.conf (or let the user linger).",
    ),
    "nccl_error": Cause(
        "NCCL failed.",
        "NCCL error, ncclSystemError, NCCL WARN",
        "Read the ranks' NCCL logs with tandem.serving.nccl_log_info, which names the fault.",
    ),
    "weights_missing": Cause(
        "A file of the model is missing or broken.",
        "Cannot find any model weights, LocalEntryNotFoundError, a .safetensors that is not there",
        "Run the tag sync, which compares every file with the manifest.",
    ),
    "licence_or_token": Cause(
        "The hub does not give the model to this token.",
        "GatedRepoError, 401 or 403 of the hub",
        "Accept the licence on the repository's page and set the token of that account.",
    ),
    "unrecognized_arguments": Cause(
        "The engine of this image does not know an argument.",
        "error: unrecognized arguments: --x",
        "Take the argument out of the recipe's serve section, or use an image whose version knows it.",
    ),
    "architecture_unsupported": Cause(
        "The engine of this image does not know the model's architecture or quantisation.",
        "Model architectures [...] are not supported for now",
        "Use an image that knows it: build the overlay, or take the recipe's own image.",
    ),
    "no_attention_backend": Cause(
        "No attention backend of the image fits the model on this GPU.",
        "No valid attention backend; Selected backend ... is not valid",
        "Keep kv-cache-dtype as the recipe has it, name no attention backend, and check that FlashInfer is whole in the image.",
    ),
    "configuration_refused": Cause(
        "The engine refuses its configuration.",
        "1 validation error for ModelConfig, and below it Value error, ...; must be divisible by",
        "Change the argument that the sentence names in the recipe's serve section.",
    ),
    "module_missing": Cause(
        "The image lacks a Python module or a library.",
        "ModuleNotFoundError: No module named; cannot open shared object file",
        "Use the image that the recipe names, or build the overlay again and read its self-test.",
    ),
    "permission_denied": Cause(
        "The engine's user may not use a file or folder.",
        "PermissionError: [Errno 13] Permission denied",
        "Give the path that the sentence names to the engine's user; an earlier container may have left it to root.",
    ),
    "image_missing": Cause(
        "The image is neither on the host nor in the registry.",
        "manifest unknown, pull access denied, No such image",
        "Run the tag image, and see that the recipe's image.ref is right.",
    ),
    "engine_missing": Cause(
        "The image does not hold the program that the recipe starts.",
        "exec: vllm: not found, executable file not found in $PATH",
        "See that image_ref is an image of the recipe's engine.",
    ),
    "image_wrong_platform": Cause(
        "The image is for another kind of CPU.",
        "exec format error; no matching manifest for linux/arm64",
        "Use an image for this host's platform: a DGX Spark and a DGX Station are arm64.",
    ),
    "port_in_use": Cause(
        "A port that the engine wants is taken.",
        "[Errno 98] Address already in use",
        "Stop what listens there (ss -ltnp), or change the recipe's ports.",
    ),
    "shm_too_small": _SHM_TOO_SMALL,
    "disk_full": Cause(
        "A disk is full.", "No space left on device", "Free space in the cache folder and where docker keeps its data."
    ),
    "out_of_memory_killed": Cause(
        "The kernel killed a process because the host had no memory left.",
        "Out of memory: Killed process; exit 137 with OOMKilled",
        "Lower gpu-memory-utilization or max-num-batched-tokens, and leave the host some GiB: on a DGX Spark it shares them with the GPU.",
    ),
    "process_killed": Cause(
        "A process was killed from outside.",
        "exit 137, status=9/KILL",
        "Look for the kernel's memory killer in the journal (journalctl -k), or for who stopped the container.",
    ),
    "gpu_out_of_memory": Cause(
        "The GPU's memory ran out.",
        "CUDA out of memory, torch.OutOfMemoryError",
        "Lower gpu-memory-utilization, max-num-batched-tokens or max-num-seqs; drop the page cache before the start on a DGX Spark.",
    ),
    "host_out_of_memory": Cause(
        "The host's memory ran out.",
        "MemoryError, Cannot allocate memory, std::bad_alloc",
        "Free memory on the host, or lower what the engine asks for.",
    ),
    "gpu_driver_no_memory": Cause(
        "The GPU driver found no memory.",
        "NVRM ... NV_ERR_NO_MEMORY",
        "Wait until the old rank has let go of its memory before the next start; restart the host if memory stays missing.",
    ),
    "gpu_xid": Cause(
        "The GPU driver reports a fault.",
        "NVRM: Xid (PCI:...): 31",
        "Look the number up in NVIDIA's Xid catalogue; restart the host if it comes again.",
    ),
    "gpu_fault": Cause(
        "A GPU kernel failed.",
        "CUDA error: an illegal memory access was encountered",
        "Run once with CUDA_LAUNCH_BLOCKING=1 to find the kernel; try without the overlay's fast tiers.",
    ),
    "gpu_not_available": Cause(
        "The engine sees no GPU.",
        "No CUDA GPUs are available, could not select device driver",
        "Run the tag runtime, which sets up the NVIDIA container toolkit.",
    ),
    "kernel_image_missing": Cause(
        "The image has no kernel for this GPU.",
        "no kernel image is available for execution on the device",
        "Use an image built for this GPU (sm_121 on DGX Spark, sm_103 on GB300).",
    ),
    "driver_too_old": Cause(
        "The NVIDIA driver is too old for the image.",
        "The NVIDIA driver on your system is too old",
        "Update the host's driver, or use an image of an older CUDA.",
    ),
    "driver_library_mismatch": Cause(
        "The NVIDIA driver was updated, and the kernel still runs the old one.",
        "Failed to initialize NVML: Driver/library version mismatch",
        "Restart the host.",
    ),
    "illegal_instruction": Cause(
        "The CPU lacks an instruction that the program uses.",
        "exit 132 and no output; status=4/ILL; the kernel's trap invalid opcode",
        "Use an image built for this CPU.",
    ),
    "segmentation_fault": Cause(
        "A process crashed.",
        "exit 139, Segmentation fault",
        "Look for the last lines before it; report it to the engine's project with the core's backtrace.",
    ),
    "peer_lost": Cause(
        "A process of the engine, or another rank, went away.",
        "Worker proc died unexpectedly, EngineDeadError",
        "Look at the log of the rank that went first.",
    ),
    "engine_exception": Cause(
        "The engine ended with an exception that has no name here.",
        "a traceback",
        "Read the evidence; the last line of the first traceback is the root.",
    ),
    "engine_exit": Cause(
        "The engine ended without saying why.", "an exit status other than 0", "Read the last lines of its log."
    ),
    "little_memory_free": Cause(
        "Less memory is free than the recipe's makers advise. A long prompt may take the rest.",
        "MemAvailable of a DGX Spark below 110 GiB before the start of TensorFold",
        "Free memory on the host: stop the desktop session, remove old containers, drop the page cache.",
    ),
    "no_memory_constants": Cause(
        "The recipe says nothing about memory.",
        "a memory section without page_bytes",
        "Fill the recipe's memory section (docs/memory.md), or start and read the pool with tandem.serving.kv_pool_info.",
    ),
    "exl3_tier_degraded": Cause(
        "The EXL3 kernels run on a slower path than configured.",
        "effective_tier differs from configured_tier, or a degraded mark",
        "Check the overlay's build log for the extension, and that max-num-seqs x (drafted + 1) fits the temp rows.",
    ),
}

HOST = {
    "host_unreachable": Cause(
        "The host does not answer to Ansible.",
        "UNREACHABLE: Failed to connect to the host via ssh",
        "Look at the power, the network and the SSH server of the host, and at its name, user and key in the inventory.",
    ),
    "not_read": Cause(
        "Something of the host, or a saved log, could not be read, so that it was not judged.",
        "the message of the module or command that failed, permission denied, or a .gz that is none",
        "Cure what the message says, and diagnose again.",
    ),
    "ok": _OK,
    "cpu_without_avx2": Cause(
        "The processor lacks AVX2, which the CPU engine needs.", "no avx2 flag in /proc/cpuinfo", "Use another machine."
    ),
    "page_size_64k": Cause(
        "The kernel uses pages of 64 KiB, with which memory-mapped loading wedges.",
        "getconf PAGESIZE prints 65536",
        "Boot the kernel with pages of 4 KiB, or use the staged load.",
    ),
    "swappiness_zero": Cause(
        "The kernel may not swap at all; machines with unified memory lock up then.",
        "vm.swappiness = 0",
        "Set it to 60: sysctl -w vm.swappiness=60, and in /etc/sysctl.d so that it stays.",
    ),
    "logind_removes_ipc": Cause(
        "logind deletes the semaphores of a user whose last session ends, and with them the engine's.",
        "RemoveIPC is not set to no",
        "Set RemoveIPC=no in logind.conf, or enable linger for the user.",
    ),
    "kho_cma_pool": Cause(
        "The kernel keeps a pool of contiguous memory that it does not count, and registering memory for RDMA fails.",
        "/proc/meminfo: CmaFree above CmaTotal, as with kernel 7.0; ibv_reg_mr: Cannot allocate memory",
        "Boot with kho=off on the kernel's command line.",
    ),
    "gpu_requires_reset": Cause(
        "The GPU does no work before it is reset.",
        "nvidia-smi shows ERR!, or [GPU requires reset]",
        "Restart the host; if it comes again, read the Xid lines of the kernel's log.",
    ),
    "gpu_in_use": Cause(
        "Another process computes on the rank's GPU, and takes memory and time from it.",
        "nvidia-smi --query-compute-apps lists it",
        "End it, or move it to another GPU.",
    ),
    "gpu_not_found": Cause(
        "The host has no GPU of the kind that the recipe is for.",
        "nvidia-smi lists another GPU, or none",
        "Choose the recipe for this machine, or repair the driver until nvidia-smi lists the GPU.",
    ),
    "driver_590": Cause(
        "Drivers of the series 590 deadlock while graphs are captured.",
        "driver 590.x",
        "Install a driver of the series 580, and hold it.",
    ),
    "disk_too_small": Cause(
        "The bytes that are still missing do not fit on the disk.",
        "less free than missing",
        "Free {missing} on {mount}, or move {path} to a larger disk.",
    ),
    "port_taken": Cause(
        "Another process listens on a port that the head needs.",
        "ss -ltnp lists it",
        "Stop {who}, or set another port under ports in recipe_overrides.",
    ),
}

SERVER = {
    "ok": _OK,
    "different_configuration": Cause(
        "The ranks run with different configurations.",
        "hashes differ",
        "Run site.yml with --tags start, which restarts all ranks from one configuration.",
    ),
    "different_image": Cause(
        "The ranks run different images.",
        "layers or configuration differ",
        "Run site.yml with --tags image, which ships what is missing, then start again.",
    ),
    "different_weights": Cause(
        "The ranks hold different weights.",
        "manifests differ",
        "Run site.yml with --tags sync, which sends only what differs, then start again.",
    ),
    "api_not_healthy": Cause(
        "The server does not answer its health check.",
        "GET /health is not 200",
        "Read the log of the head: ansible-playbook playbooks/logs.yml.",
    ),
    "model_not_served": Cause(
        "The server does not list the model.",
        "/v1/models has other names, or none",
        "See whether another server holds the port (ss -ltnp), and whether the API key is right.",
    ),
    "kv_pool_not_told": Cause(
        "Log or metrics do not name the KV pool.",
        "one of the two is missing",
        "Read the log of the head from its start.",
    ),
    "kv_pool_disagrees": Cause(
        "Log and metrics name different KV pools.",
        "the log is of another start",
        "Restart the ranks, and verify again.",
    ),
    "ranks_do_not_talk": Cause(
        "No connection between the ranks was found.",
        "no line of the fabric address in /proc/net/tcp",
        "Check VLLM_HOST_IP and the *_SOCKET_IFNAME of the rank in /etc/tandem/rank.env.",
    ),
    "ranks_talk_beside_the_fabric": Cause(
        "Ranks talk over a network that is not the fabric.",
        "connections to a management address of a peer",
        "Check VLLM_HOST_IP and the *_SOCKET_IFNAME of the rank in /etc/tandem/rank.env.",
    ),
    "canary_request_failed": Cause(
        "The canary got no answer.",
        "HTTP status other than 200",
        "Read the logs of all ranks: one may be dead although /health is 200.",
    ),
    "canary_empty": Cause(
        "The canary's answer is empty.", "no text", "Raise the probe's max_tokens, or look for a broken engine."
    ),
    "canary_repeats": Cause(
        "The canary's answer repeats itself.",
        "!!!!!!!!",
        "Verify weights and image of every rank: one of them, or a kernel, is wrong.",
    ),
    "canary_wrong_text": Cause(
        "The canary's answer is wrong.", "other text", "Verify the weights and the image of every rank."
    ),
    "canary_no_tool_call": Cause(
        "The canary did not call its tool.", "text instead", "Set the tool parser of this model."
    ),
    "canary_too_short": Cause(
        "The canary's answer ends too early.", "few tokens", "Read the engine's log around this request."
    ),
    "canary_thinking_switch": Cause(
        "The model thinks although it should not, or the other way around.",
        "reasoning where none is expected",
        "Use the recipe's chat template: that of this checkpoint does not know the switch.",
    ),
    "canary_no_drafts": Cause(
        "Nothing was drafted.",
        "counters of speculation do not move",
        "See that speculation is on and the drafter's revision is right.",
    ),
    "canary_no_drafts_accepted": Cause(
        "Drafts were made, and none accepted.",
        "accepted tokens 0",
        "See that revision, attention backend and auxiliary layers of the drafter are right.",
    ),
}

PINS = {
    "ok": _OK,
    "not_pinned": Cause(
        "A revision, digest or licence could not be found out, so nothing is pinned to it.",
        "the error of the hub or the registry",
        "Do what the check says, then run playbooks/lock.yml again.",
    ),
}

# Heading on the page of checks -> its causes. A code means the same wherever it stands.
TOPICS: dict[str, dict[str, Cause]] = {
    "NCCL logs (`nccl_log_info`)": NCCL,
    "Bandwidth (`nccl_perf_info`)": PERFORMANCE,
    "Engine logs and KV pool (`engine_log_info`, `kv_pool_info`)": ENGINE,
    "Hosts (`host_info`)": HOST,
    "Pins (`pin_info`)": PINS,
    "The running server (role `verify`)": SERVER,
}

CAUSES: dict[str, Cause] = {code: cause for causes in TOPICS.values() for code, cause in causes.items()}


def remedy(code: str) -> str:
    """How to cure a cause."""
    return CAUSES[code].remedy


def fault(
    name: str,
    cause: str,
    expected: Any,
    found: Any,
    *,
    verdict: Verdict = "fail",
    evidence: Iterable[str] = (),
    table: Mapping[str, Cause] = CAUSES,
    **words: Any,
) -> Check:
    """A check that did not pass, with the remedy of its cause. ``words`` fill the remedy in."""
    cure = table[cause].remedy.format(**words)
    return check(name, verdict, expected, found, cause=cause, evidence=evidence, remedy=cure)
