# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What moves: the digest that an image's tag has now, the commit that a branch of a hub repository has now.

Pure but for ``Get``, which the caller brings. Sources: the distribution specification of OCI, Docker's token
authentication, the hub's API.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_REFERENCE = re.compile(r"(?P<name>[a-z0-9][a-z0-9._/:-]*?)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class Answer(NamedTuple):
    """An HTTP answer. ``headers`` have lower-case names; ``status`` is 0 when nobody answered, ``body`` then says why."""

    status: int
    headers: Mapping[str, str]
    body: str


# Method, URL, headers.
Get = Callable[[str, str, Mapping[str, str]], Answer]


class PinError(Exception):
    """What was asked for cannot be pinned. The text says what was asked, what came and what to do."""


class Reference(NamedTuple):
    """An image by its tag."""

    registry: str
    name: str
    tag: str


def parse_reference(text: str) -> Reference:
    """Read an image's name as Docker does: the first part is a registry when it has a dot or a port, or is localhost."""
    match = _REFERENCE.fullmatch(text)
    if not match:
        raise PinError(f"image '{text}': expected [registry/]name[:tag], without a digest. Set the image's ref.")
    name, tag = match["name"], match["tag"] or "latest"
    first, _slash, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return Reference(first, rest, tag)
    return Reference("registry-1.docker.io", name if rest else f"library/{name}", tag)


def _token(reference: Reference, challenge: str, get: Get) -> str:
    """Answer a registry's challenge as an anonymous user."""
    said = dict(_CHALLENGE.findall(challenge))
    if not challenge.lower().startswith("bearer") or "realm" not in said:
        raise PinError(
            f"{reference.registry} asks for a login ({challenge[:60]}). Pin the image by hand: "
            "`docker buildx imagetools inspect` prints its digest."
        )
    query = {"service": said.get("service", ""), "scope": said.get("scope", f"repository:{reference.name}:pull")}
    answer = get("GET", f"{said['realm']}?{urlencode(query)}", {})
    if answer.status != 200:
        raise PinError(f"{said['realm']}: expected a token, found HTTP {answer.status} {answer.body[:120]}.")
    found = json.loads(answer.body)
    return str(found.get("token") or found.get("access_token") or "")


def image_digest(text: str, get: Get) -> str:
    """The digest that a tag has in its registry. Raises PinError."""
    reference = parse_reference(text)
    # As Docker has it: a registry on the own host may do without TLS.
    scheme = "http" if re.match(r"localhost(:|$)|127\.", reference.registry) else "https"
    url = f"{scheme}://{reference.registry}/v2/{reference.name}/manifests/{reference.tag}"
    headers = {"Accept": _MANIFESTS}
    answer = get("HEAD", url, headers)
    if answer.status == 401:
        token = _token(reference, answer.headers.get("www-authenticate", ""), get)
        answer = get("HEAD", url, {**headers, "Authorization": f"Bearer {token}"})
    digest = answer.headers.get("docker-content-digest", "")
    if answer.status != 200 or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        why = {404: "no such image or tag", 401: "access denied", 429: "too many requests, try again later"}
        raise PinError(
            f"image {text}: expected a digest from {reference.registry}, found HTTP {answer.status} "
            f"{why.get(answer.status, answer.body[:120] or 'without a digest')}. Check the name, and that this host reaches the registry."
        )
    return digest


def commit(repo: str, revision: str, endpoint: str, token: str, get: Get) -> str:
    """The commit that a branch or tag of a model repository has now. Raises PinError."""
    url = f"{endpoint.rstrip('/')}/api/models/{quote(repo)}/revision/{quote(revision, safe='')}"
    answer = get("GET", url, {"Authorization": f"Bearer {token}"} if token else {})
    if answer.status == 200:
        found = str(json.loads(answer.body).get("sha", ""))
        if re.fullmatch(r"[0-9a-f]{40}", found):
            return found
    why = {
        401: "the token is missing or wrong",
        403: f"access is not granted: accept the terms on the page of {repo}",
        404: "no such repository or revision, or no access to it",
    }
    raise PinError(
        f"{repo}@{revision}: expected a commit from {endpoint}, found HTTP {answer.status} "
        f"{why.get(answer.status, answer.body[:120])}. Check the name, weights_token, and that this host reaches the hub."
    )
