"""A Hugging Face hub on this machine: the real protocol for the files of a folder, and faults on demand. See README.md."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")
LFS_SIZE = 10 * 2**20
CHUNK = 256 * 2**10


@dataclass(frozen=True)
class File:
    """One file of a repository. ``oid`` is the name of its blob in a cache: sha256 for LFS, else git's sha1."""

    path: str
    size: int
    oid: str
    git_oid: str
    lfs: bool
    source: Path


def git_sha1(content: bytes) -> str:
    """Git's name of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def read_file(root: Path, source: Path) -> File:
    """Describe a file, reading it once."""
    size = source.stat().st_size
    path = source.relative_to(root).as_posix()
    if size < LFS_SIZE and source.suffix not in LFS_SUFFIXES:
        oid = git_sha1(source.read_bytes())
        return File(path, size, oid, oid, False, source)
    with source.open("rb") as file:
        oid = hashlib.file_digest(file, "sha256").hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n".encode()
    return File(path, size, oid, git_sha1(pointer), True, source)


class Repo:
    """One repository with one revision, which is a digest of its files' paths and contents."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> dict[str, File]:
        found = (read_file(self.root, path) for path in sorted(self.root.rglob("*")) if path.is_file())
        return {file.path: file for file in found}

    @cached_property
    def revision(self) -> str:
        lines = "".join(f"{file.path}\0{file.oid}\n" for file in self.files.values())
        return hashlib.sha1(lines.encode()).hexdigest()

    def tree(self) -> list[dict[str, Any]]:
        """Files and folders as the hub lists them."""
        folders = {str(parent) for path in self.files for parent in Path(path).parents} - {"."}
        entries: list[dict[str, Any]] = [
            {"type": "directory", "path": folder, "size": 0, "oid": git_sha1(folder.encode())}
            for folder in sorted(folders)
        ]
        for file in self.files.values():
            entry = {"type": "file", "path": file.path, "size": file.size, "oid": file.git_oid}
            if file.lfs:
                entry["lfs"] = {"oid": file.oid, "size": file.size, "pointerSize": 134}
            entries.append(entry)
        return entries


@dataclass
class Fault:
    """What goes wrong with the next ``times`` requests whose path matches.

    ``kind``: cut (close the connection after ``after`` bytes of the body), status (answer ``status``, with Retry-After where
    ``retry_after`` is set), truncate (announce and send ``after`` bytes less), corrupt (flip a bit of the byte at ``after``),
    rate (send ``after`` bytes a second).
    """

    kind: str
    match: str = ""
    method: str = "GET"
    times: int = 1
    after: int = 0
    status: int = 500
    retry_after: int | None = None


class Hub(ThreadingHTTPServer):
    """The server. ``gated`` maps a repository to the token that opens it; other tokens that start with hf_ are known but refused."""

    daemon_threads = True

    def __init__(
        self,
        root: Path,
        address: tuple[str, int] = ("127.0.0.1", 0),
        log: Path | None = None,
        gated: dict[str, str] | None = None,
    ) -> None:
        super().__init__(address, Handler)
        self.root, self.log_path, self.gated = root, log, gated or {}
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.entries: list[dict[str, Any]] = []
        self.open = 0
        self.recorded = threading.Condition()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def repo(self, name: str) -> Repo | None:
        """A repository by its name, or None."""
        with self.lock:
            if name not in self.repos and (self.root / name).is_dir():
                self.repos[name] = Repo(self.root / name)
                self.repos[name].revision  # noqa: B018
            return self.repos.get(name)

    def take_fault(self, method: str, path: str) -> Fault | None:
        """The fault that this request meets, used up once."""
        with self.lock:
            for fault in self.faults:
                if fault.method == method and re.search(fault.match, path):
                    fault.times -= 1
                    self.faults = [left for left in self.faults if left.times > 0]
                    return fault
        return None

    @property
    def log(self) -> list[dict[str, Any]]:
        """The access log, with every request that has begun: a client has its answer a moment before its line is written."""
        with self.recorded:
            self.recorded.wait_for(lambda: not self.open, timeout=10)
        return self.entries

    def begin(self) -> None:
        """A request has begun."""
        with self.recorded:
            self.open += 1

    def record(self, entry: dict[str, Any]) -> None:
        """Keep a line of the access log: a request has ended."""
        with self.recorded:
            self.open -= 1
            self.entries.append(entry)
            if self.log_path:
                with self.log_path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
            self.recorded.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serve from a thread of this process."""
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class RefusedError(Exception):
    """An error as the hub words it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        """Add a fault, or a list of them."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"[]")
        if self.path != "/_faults":
            return self.send_json({"error": "Not Found"}, 404)
        with self.server.lock:
            self.server.faults += [Fault(**item) for item in (body if isinstance(body, list) else [body])]
        return self.send_json({"faults": len(self.server.faults)})

    def do_DELETE(self) -> None:
        """Forget all faults."""
        with self.server.lock:
            self.server.faults = []
        self.send_json({"faults": 0})

    def answer(self) -> None:
        self.server.begin()
        self.sent, self.status = 0, 0
        path = unquote(urlsplit(self.path).path)
        fault = self.server.take_fault(self.command, path)
        try:
            if fault and fault.kind == "status":
                headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
                self.send_json({"error": HTTPStatus(fault.status).phrase}, fault.status, headers)
            else:
                self.route(path, fault)
        except RefusedError as error:
            self.send_json(
                {"error": str(error)}, error.status, {"X-Error-Code": error.code, "X-Error-Message": str(error)}
            )
        finally:
            wanted = self.headers.get("Range")
            entry = {
                "time": time.time(),
                "method": self.command,
                "path": path,
                "range": wanted,
                "status": self.status,
                "sent": self.sent,
            }
            self.server.record(entry)

    def route(self, path: str, fault: Fault | None) -> None:
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+).*)?", path):
            name, kind, revision = found.groups()
            repo = self.find(name, revision or "main", api=True)
            if kind == "tree":
                return self.send_json(repo.tree())
            info = {"_id": name, "id": name, "modelId": name, "sha": repo.revision, "private": False}
            gated = "manual" if name in self.server.gated else False
            return self.send_json(info | {"gated": gated, "siblings": [{"rfilename": file} for file in repo.files]})
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            name, revision, wanted = found.groups()
            repo = self.find(name, revision)
            file = repo.files.get(wanted)
            if file is None:
                raise RefusedError(404, "EntryNotFound", "Entry not found")
            headers = {"X-Repo-Commit": repo.revision, "Accept-Ranges": "bytes"}
            if file.lfs:
                headers |= {"X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": str(file.size)}
            return self.send_file(file, headers, fault)
        return self.send_json({"error": "Not Found"}, 404)

    def find(self, name: str, revision: str, api: bool = False) -> Repo:
        """A repository that the client may read at this revision."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and not token.startswith("hf_"):
            raise RefusedError(401, "", "Invalid credentials in Authorization header")
        repo = self.server.repo(name)
        if repo is None:
            # The real hub does not tell strangers whether a private repository exists.
            status, message = (404, "Repository not found") if token else (401, "Invalid username or password.")
            raise RefusedError(status, "RepoNotFound", message)
        if not api and name in self.server.gated and token != self.server.gated[name]:
            if not token:
                message = f"Access to model {name} is restricted. You must have access to it and be authenticated to access it."
                raise RefusedError(401, "GatedRepo", message)
            message = f"Access to model {name} is restricted and you are not in the authorized list. Ask for access on its page."
            raise RefusedError(403, "GatedRepo", message)
        if revision not in ("main", repo.revision):
            raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo

    def send_file(self, file: File, headers: dict[str, str], fault: Fault | None) -> None:
        start, end, status = 0, file.size, 200
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start, end, status = int(found[1]), min(int(found[2] or file.size) + bool(found[2]), file.size), 206
            if start >= file.size:
                return self.send_head(416, {"Content-Range": f"bytes */{file.size}", "Content-Length": "0"})
            headers |= {"Content-Range": f"bytes {start}-{end - 1}/{file.size}"}
        if fault and fault.kind == "truncate":
            end -= fault.after
        headers |= {"ETag": f'"{file.oid}"', "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        self.send_head(status, headers | {"Content-Length": str(end - start)})
        if self.command == "HEAD":
            return None
        with file.source.open("rb") as source:
            source.seek(start)
            self.send_body(source, end - start, fault)
        return None

    def send_body(self, source: Any, length: int, fault: Fault | None) -> None:
        kind, after = (fault.kind, fault.after) if fault else ("", 0)
        rate = after if kind == "rate" else 0
        stop = min(after, length) if kind == "cut" else length
        while self.sent < stop:
            chunk = source.read(min(CHUNK, rate // 10 or CHUNK, stop - self.sent))
            if kind == "corrupt" and self.sent <= after < self.sent + len(chunk):
                at = after - self.sent
                chunk = chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :]
            self.wfile.write(chunk)
            self.sent += len(chunk)
            if rate:
                time.sleep(len(chunk) / rate)
        if stop < length:
            self.close_connection = True

    def send_json(self, data: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        self.send_head(status, {"Content-Type": "application/json", "Content-Length": str(len(body))} | (headers or {}))
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_head(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """The access log says it all."""


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder that holds ORG/NAME/FILES")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=18080)
    parser.add_argument("--log", type=Path, help="access log, one JSON object a line")
    parser.add_argument("--pidfile", type=Path)
    parser.add_argument(
        "--gated", action="append", default=[], metavar="ORG/NAME=TOKEN", help="repository that needs this token"
    )
    parser.add_argument("--revision", metavar="ORG/NAME", help="print the revision of a repository and end")
    arguments = parser.parse_args()
    if arguments.revision:
        print(Repo(arguments.root / arguments.revision).revision)
        return
    gated = dict(item.split("=", 1) for item in arguments.gated)
    hub = Hub(arguments.root, (arguments.host, arguments.port), arguments.log, gated)
    if arguments.pidfile:
        arguments.pidfile.write_text(f"{os.getpid()}\n")
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(0))
    print(f"hub at {hub.url} serves {arguments.root}", flush=True)
    try:
        hub.serve_forever()
    finally:
        if arguments.pidfile:
            arguments.pidfile.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
