# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the kernel's tables of TCP sockets, ``/proc/net/tcp`` and ``/proc/net/tcp6``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

_ESTABLISHED, _LISTEN = "01", "0A"
_WORD = 4


class Socket(NamedTuple):
    """One socket. Addresses as one writes them; IPv4 within IPv6 is IPv4."""

    local_address: str
    local_port: int
    peer_address: str
    peer_port: int
    listening: bool


def address(digits: str, byteorder: str = sys.byteorder) -> str:
    """An address as the kernel prints it: hexadecimal words of 32 bits, each in the byte order of the machine."""
    raw = bytes.fromhex(digits)
    if byteorder == "little":
        raw = b"".join(raw[at : at + _WORD][::-1] for at in range(0, len(raw), _WORD))
    if len(raw) == _WORD:
        return str(IPv4Address(raw))
    long = IPv6Address(raw)
    return str(long.ipv4_mapped or long)


def sockets(table: str, byteorder: str = sys.byteorder) -> Iterator[Socket]:
    """The established and listening sockets of a table. A line that is none is passed over."""
    for line in table.splitlines():
        words = line.split()
        if len(words) < 4 or words[3] not in (_ESTABLISHED, _LISTEN):
            continue
        try:
            (local, local_port), (peer, peer_port) = (word.split(":") for word in words[1:3])
            yield Socket(
                address(local, byteorder),
                int(local_port, 16),
                address(peer, byteorder),
                int(peer_port, 16),
                words[3] == _LISTEN,
            )
        except ValueError:
            continue


def select(found: Iterable[Socket], local: Iterable[str], peer: Iterable[str]) -> list[Socket]:
    """The sockets with one of the addresses on each side. No address given means any; a listening socket has no peer."""
    locals_, peers = set(local), set(peer)
    return [
        item
        for item in found
        if (not locals_ or item.local_address in locals_)
        and (not peers or item.listening or item.peer_address in peers)
    ]
