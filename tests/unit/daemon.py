"""A real rsync daemon on loopback, configured by the template of the role share."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import jinja2

TEMPLATE = Path(__file__).parents[2] / "roles/share/templates/rsyncd.conf.j2"


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind((address, 0))
        return int(free.getsockname()[1])


class Daemon:
    """A daemon that offers one folder to who knows the password ``right``, and logs each file that it sends."""

    def __init__(
        self,
        folder: Path,
        name: str,
        path: Path,
        *options: str,
        address: str = "127.0.0.1",
        port: int | None = None,
    ) -> None:
        self.port = port or free_port(address)
        self.share = f"{name}{path}"
        self.log = folder / "rsyncd.log"
        text = jinja2.Template(TEMPLATE.read_text()).render(
            __share_address=address,
            share_port=self.port,
            share_name=name,
            share_path=path,
            share_hosts=["127.0.0.0/8"],
            __share_user="tandem",
            __share_folder=folder,
        )
        if os.getuid() != 0:
            text = "\n".join(line for line in text.splitlines() if not line.startswith(("uid", "gid")))
            text += "\nuse chroot = no\n"
        (folder / "rsyncd.conf").write_text(
            f"log file = {self.log}\ntransfer logging = yes\nlog format = %o %b %f\n{text}"
        )
        (folder / "secrets").write_text("tandem:right\n")
        (folder / "secrets").chmod(0o600)
        self.process = subprocess.Popen(
            ["rsync", "--daemon", "--no-detach", f"--config={folder / 'rsyncd.conf'}", *options]
        )
        deadline = time.monotonic() + 10
        while socket.socket().connect_ex((address, self.port)):
            if time.monotonic() > deadline:
                raise RuntimeError("the rsync daemon does not listen")
            time.sleep(0.02)

    def sent(self) -> dict[str, int]:
        """Bytes that were sent of each file, by name."""
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
