"""The reading of the kernel's tables of sockets."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tandem.serving.plugins.module_utils._connections import Socket, address, select, sockets

PROC = Path(__file__).parent.parent / "fixtures/proc/net"
TABLE = (PROC / "tcp").read_text() + (PROC / "tcp6").read_text()


def test_tables_of_a_rank() -> None:
    assert list(sockets(TABLE, "little")) == [
        Socket("127.0.0.1", 631, "0.0.0.0", 0, True),
        Socket("0.0.0.0", 29521, "0.0.0.0", 0, True),
        Socket("10.99.0.11", 29521, "10.99.0.12", 45678, False),
        Socket("10.99.0.11", 50000, "10.99.0.12", 40961, False),
        Socket("10.98.0.11", 22, "10.98.0.1", 55758, False),
        Socket("::", 8888, "::", 0, True),
        Socket("10.99.0.11", 35371, "10.99.0.12", 40001, False),
        Socket("fe80::5054:ff:fe1d:adb6", 54321, "fe80::5054:ff:fe2e:adc6", 22, False),
    ]


@pytest.mark.parametrize(
    ("digits", "byteorder", "expected"),
    [
        ("0100007F", "little", "127.0.0.1"),
        ("7F000001", "big", "127.0.0.1"),
        ("00000000000000000000000001000000", "little", "::1"),
        ("00000000000000000000000000000001", "big", "::1"),
        ("B80D0120000000000000000001000000", "little", "2001:db8::1"),
    ],
)
def test_words_are_in_the_byte_order_of_the_machine(digits: str, byteorder: str, expected: str) -> None:
    assert address(digits, byteorder) == expected


@pytest.mark.parametrize(
    ("local", "peer", "connections", "listening"),
    [
        ([], [], 5, 3),
        (["10.99.0.11"], [], 3, 0),
        ([], ["10.99.0.12"], 3, 3),
        (["10.99.0.11"], ["10.98.0.1"], 0, 0),
        (["0.0.0.0", "10.98.0.11"], [], 1, 1),
    ],
)
def test_selection(local: list[str], peer: list[str], connections: int, listening: int) -> None:
    found = select(sockets(TABLE, "little"), local, peer)
    assert (sum(not item.listening for item in found), sum(item.listening for item in found)) == (
        connections,
        listening,
    )


def test_a_real_connection_of_this_process_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        there, here = server.getsockname(), client.getsockname()
        found = list(sockets(Path("/proc/net/tcp").read_text()))
        assert Socket(*there, "0.0.0.0", 0, True) in found
        assert Socket(*here, *there, False) in found


@given(st.text(), st.sampled_from(["little", "big"]))
def test_no_table_is_an_error(noise: str, byteorder: str) -> None:
    list(sockets(noise + TABLE[: len(noise) * 7] + noise, byteorder))


def test_the_byte_order_is_that_of_this_machine() -> None:
    assert address("0100007F" if sys.byteorder == "little" else "7F000001") == "127.0.0.1"
