"""A real rsync daemon on loopback."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind((address, 0))
        return int(free.getsockname()[1])


class Daemon:
    """A daemon that offers one cache, and logs each file that it sends."""

    def __init__(
        self, folder: Path, cache: Path, *options: str, address: str = "127.0.0.1", port: int | None = None
    ) -> None:
        self.port = port or free_port(address)
        self.log = folder / "rsyncd.log"
        (folder / "secrets").write_text("tandem:right\n")
        (folder / "secrets").chmod(0o600)
        (folder / "rsyncd.conf").write_text(
            f"address = {address}\nport = {self.port}\nuse chroot = no\nlog file = {self.log}\ntransfer logging = yes\n"
            f"log format = %o %b %f\n[weights]\npath = {cache}\nread only = yes\nauth users = tandem\n"
            f"secrets file = {folder / 'secrets'}\n"
        )
        self.process = subprocess.Popen(
            ["rsync", "--daemon", "--no-detach", f"--config={folder / 'rsyncd.conf'}", *options]
        )
        deadline = time.monotonic() + 10
        while socket.socket().connect_ex((address, self.port)):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def sent(self) -> dict[str, int]:
        """Bytes that were sent of each blob."""
        total: dict[str, int] = {}
        for line in self.log.read_text().splitlines() if self.log.exists() else []:
            words = line.split()
            if "send" in words:
                at = words.index("send")
                name = words[-1].rpartition("/")[2]
                total[name] = total.get(name, 0) + int(words[at + 1])
        return total

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()
