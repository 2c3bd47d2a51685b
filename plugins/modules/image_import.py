#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch the layers of an image that this host lacks, and load it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_import
short_description: Fetch the layers of an image that this host lacks, and load it
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Fetches what M(tandem.serving.image_export) wrote on another host, from the daemon that the role P(tandem.serving.share#role)
    starts there, several layers at once, and gives it to Docker as it arrives.
  - A layer that was cut off goes on where it stopped. Each is held against its digest before it is used.
  - The image gets its name after it was loaded, since Docker's containerd store shows an image whose load failed as if it were whole.
  - It loads each time it runs. Compare the identity of the image before.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.share
  - tandem.serving.progress
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    description: The result names the bytes.
requirements:
  - docker
options:
  name:
    description: Name that the image gets, with its tag.
    type: str
    required: true
  path:
    description: Folder to fetch into.
    type: path
    required: true
  files:
    description: Files to fetch beside the layers, as RV(tandem.serving.image_export#module:files).
    type: list
    elements: str
    required: true
  layers:
    description: Layers to fetch, as RV(tandem.serving.image_layers_info#module:layers) on this host.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Bring the image
  tandem.serving.image_import:
    name: localhost/tandem/engine:0123456789ab
    path: /var/lib/tandem/image/in
    files: "{{ hostvars['spark1'].exported.files }}"
    layers: "{{ missing.layers }}"
    sources: [192.0.2.1, 198.51.100.1]
    share: image/var/lib/tandem/image/out
    password: "{{ hostvars['spark1'].share_password }}"
  become: true
"""

RETURN = r"""
bytes:
  description: Bytes that were fetched.
  returned: always
  type: int
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _docker_api, _image_layout, _rsync
from ansible_collections.tandem.serving.plugins.module_utils._alone import alone
from ansible_collections.tandem.serving.plugins.module_utils._image_output import watch
from ansible_collections.tandem.serving.plugins.module_utils._image_store import Layer
from ansible_collections.tandem.serving.plugins.module_utils._progress import ARGUMENTS, Progress


def on_disk(root: Path, layers: list[Layer]) -> int:
    """Bytes of the layers that are here, whole or in part."""
    paths = [root / _image_layout.blob_path(layer["digest"]) for layer in layers]
    return sum(place.stat().st_size for path in paths for place in (path, path.with_suffix(".part")) if place.exists())


def fetched(params: dict[str, Any], share: _rsync.Share, progress: Progress) -> Iterator[str]:
    """Fetch all files, and tell the path of each as soon as it is whole."""
    root, layers = Path(params["path"]), params["layers"]
    (root / _image_layout.BLOBS).mkdir(parents=True, exist_ok=True)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            progress.set(done=on_disk(root, layers))

    def fetch(digest: str) -> str:
        return _image_layout.fetch_blob(digest, root, share.append)

    threading.Thread(target=look, daemon=True).start()
    pool = ThreadPoolExecutor(params["streams"])
    try:
        for name in params["files"]:
            if name.startswith(_image_layout.BLOBS):
                fetch(f"sha256:{Path(name).name}")
            else:
                (root / name).unlink(missing_ok=True)
                share.append(name, root / name)
            yield name
        # Of two empty layers in an image there is one blob.
        for name in pool.map(fetch, dict.fromkeys(layer["digest"] for layer in layers)):
            progress.next_item(name)
            yield name
    finally:
        ended.set()
        pool.shutdown(cancel_futures=True)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "str", "required": True},
            "layers": {"type": "list", "elements": "dict", "required": True},
            **_rsync.ARGUMENTS,
            **ARGUMENTS,
        },
        supports_check_mode=True,
    )
    params = module.params
    total = sum(layer["size"] for layer in params["layers"])
    if module.check_mode:
        module.exit_json(changed=True, bytes=total)
    docker = module.get_bin_path("docker", required=True)
    module.get_bin_path("rsync", required=True)
    progress = Progress(params["progress_file"], "ship", total, len(params["layers"]))
    root = Path(params["path"])
    already = on_disk(root, params["layers"])
    try:
        with alone(root) as held:
            names = fetched(params, _rsync.Share(params, held), progress)
            watch(_docker_api.load(lambda body: _image_layout.stream(root, names, body)), progress)
        module.run_command([docker, "image", "tag", _image_layout.LOADING, params["name"]], check_rc=True)
    except (_docker_api.DockerError, _image_layout.LoadError, _rsync.RsyncError, OSError) as error:
        module.fail_json(msg=f"{params['name']} cannot be loaded: {error}")
    finally:
        module.run_command([docker, "image", "rm", _image_layout.LOADING])
    module.exit_json(changed=True, bytes=total - already)


if __name__ == "__main__":
    main()
