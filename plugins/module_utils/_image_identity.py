# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes two images the same.

Neither the Id (the two stores of Docker count it differently) nor the tag (it moves) nor a registry's digest (lost by save and load).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypedDict


class Identity(TypedDict):
    """``digest`` over all the rest: the ordered diff ids of the layers, and how a container of the image starts."""

    digest: str
    layers: list[str]
    config: dict[str, Any]


def identity(inspected: Mapping[str, Any]) -> Identity:
    """The identity of an image from what ``docker image inspect`` says. Raises ValueError where that is not an image."""
    try:
        layers = list(inspected["RootFS"]["Layers"])
        told = dict(inspected["Config"])
        architecture = inspected["Architecture"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected what docker image inspect says of an image, with its layers: {error!r}") from error
    config = {
        "architecture": architecture,
        "os": inspected.get("Os", "linux"),
        # The stores do not agree on whether nothing is null, absent or empty.
        "env": list(told.get("Env") or []),
        "entrypoint": list(told.get("Entrypoint") or []),
        "cmd": list(told.get("Cmd") or []),
        "working_dir": told.get("WorkingDir") or "/",
        "user": told.get("User") or "",
    }
    digest = hashlib.sha256(json.dumps([layers, config], sort_keys=True).encode()).hexdigest()
    return Identity(digest=f"sha256:{digest}", layers=layers, config=config)
