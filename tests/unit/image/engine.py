"""A stand-in for Docker's API on a socket: keeps the archive that it is given, and answers a pull with what it is told."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import shutil
import socketserver
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Engine(socketserver.ThreadingUnixStreamServer):
    """``loaded`` is the last whole archive, ``requests`` what was asked, ``answer`` status and events of the next answers."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        self.loaded: dict[str, bytes] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.answer: tuple[int, list[dict[str, Any]]] = (200, [])
        super().__init__(path, _Handler)

    @property
    def host(self) -> str:
        """The value of DOCKER_HOST."""
        return f"unix://{self.server_address!s}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Engine
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "socket"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._chunks())
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                files = {member.name: archive.extractfile(member) for member in archive}
                self.server.loaded = {name: file.read() for name, file in files.items() if file}
        status, events = self.server.answer
        text = b"".join(json.dumps(event).encode() + b"\r\n" for event in events)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline() or b"broken off", 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def handle(self) -> None:
        with contextlib.suppress(ValueError, ConnectionError, tarfile.TarError):
            super().handle()


@contextlib.contextmanager
def running() -> Iterator[Engine]:
    """An engine on a socket whose path is short enough."""
    folder = tempfile.mkdtemp(prefix="tandem")
    try:
        with Engine(str(Path(folder) / "docker.sock")) as engine:
            threading.Thread(target=engine.serve_forever, daemon=True).start()
            yield engine
            engine.shutdown()
    finally:
        shutil.rmtree(folder)
