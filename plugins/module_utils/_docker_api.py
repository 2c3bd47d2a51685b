# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two calls of Docker's API that tell their progress: pull and load. Its command line tells it to terminals only."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

SOCKET = "/var/run/docker.sock"


class DockerError(Exception):
    """What the engine says, or why it cannot be reached."""


class _Connection(http.client.HTTPConnection):
    """HTTP over the engine's socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ.get("DOCKER_HOST", SOCKET).removeprefix("unix://"))


class Body:
    """A file to write to, whose content becomes the body of a request."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> int:
        """Send a piece."""
        if data:
            self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))
        return len(data)

    def close(self) -> None:
        """Send the end."""
        self._connection.send(b"0\r\n\r\n")


def pull(name: str, username: str = "", password: str = "") -> Iterator[dict[str, Any]]:
    """Pull an image by tag or digest, and tell each event."""
    if "@" not in name and ":" not in name.rpartition("/")[2]:
        name += ":latest"  # Without it the engine pulls all tags.
    headers = {}
    if username:
        login = json.dumps({"username": username, "password": password}).encode()
        headers["X-Registry-Auth"] = base64.urlsafe_b64encode(login).decode()
    return _events(f"/images/create?{urlencode({'fromImage': name})}", headers)


def load(write: Callable[[Body], None]) -> Iterator[dict[str, Any]]:
    """Load an archive that is written to a file-like object, and then tell each event of unpacking it."""
    headers = {"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked"}
    return _events("/images/load?quiet=0", headers, write)


def _events(
    path: str, headers: dict[str, str], write: Callable[[Body], None] | None = None
) -> Iterator[dict[str, Any]]:
    connection = _Connection("localhost")
    try:
        connection.putrequest("POST", path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        if write:
            try:
                body = Body(connection)
                write(body)
                body.close()
            except BrokenPipeError:
                pass  # The engine has given up; it says why below.
        answer = connection.getresponse()
        if answer.status >= 400:
            text = answer.read().decode(errors="replace")
            raise DockerError(f"Docker answers {answer.status}: {text.strip()}")
        for line in answer:
            if line.strip():
                event: dict[str, Any] = json.loads(line)
                if "error" in event:
                    raise DockerError(f"Docker says: {event['error']}")
                yield event
    except (http.client.HTTPException, ConnectionError, FileNotFoundError) as error:
        raise DockerError(f"Docker broke off at {path.partition('?')[0]}: {error!r}") from error
    finally:
        connection.close()
