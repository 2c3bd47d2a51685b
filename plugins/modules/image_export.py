#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the layers of an image that other hosts lack to a folder."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_export
short_description: Write the layers of an image that other hosts lack to a folder
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Writes an OCI layout that M(tandem.serving.image_import) loads on a host that has the layers which were left out.
  - Layers are written one by one, each proven by its digest, as Docker's store holds them, without compressing anything anew.
  - A layer that is there already is not written again, so that a run that was cut goes on with the next layer.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.progress
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    description: The result lists the layers.
requirements:
  - docker
  - ctr, where Docker uses the containerd image store
options:
  image:
    description: Name or Id of an image on this host.
    type: str
    required: true
  layers:
    description: Digests of the layers to write, as RV(tandem.serving.image_layers_info#module:layers) gives them.
    type: list
    elements: str
    required: true
  path:
    description: The folder. It is made where it is missing; whoever writes there can change what is loaded.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Write what the workers lack
  tandem.serving.image_export:
    image: localhost/tandem/engine:0123456789ab
    layers: "{{ missing | map(attribute='digest') }}"
    path: /var/lib/tandem/image
"""

RETURN = r"""
files:
  description: Files of the layout that are not layers, relative to O(path).
  returned: always
  type: list
  elements: str
written:
  description: Digests of the layers that were written now.
  returned: always
  type: list
  elements: str
bytes:
  description: Bytes of RV(written).
  returned: always
  type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _image_layout, _image_store
from ansible_collections.tandem.serving.plugins.module_utils._progress import ARGUMENTS, Progress


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "layers": {"type": "list", "elements": "str", "required": True},
            "path": {"type": "path", "required": True},
            **ARGUMENTS,
        },
        supports_check_mode=True,
    )
    root = Path(module.params["path"])
    try:
        docker, store = _image_store.engine(module)
        image = store.image(_image_store.inspect(module, docker, module.params["image"]))
        files = _image_layout.small_files(image)
        todo = [
            layer
            for layer in image["layers"]
            if layer["digest"] in module.params["layers"]
            and not (root / _image_layout.blob_path(layer["digest"])).exists()
        ]
        stale = [
            name for name, data in files.items() if not (root / name).exists() or (root / name).read_bytes() != data
        ]
        if not module.check_mode:
            (root / _image_layout.BLOBS).mkdir(mode=0o755, parents=True, exist_ok=True)
            progress = Progress(
                module.params["progress_file"], "export", sum(layer["size"] for layer in todo), len(todo)
            )
            for layer in todo:
                progress.next_item(layer["digest"])
                _image_layout.write_blob(layer, store.read(layer), root, progress.add)
            for name in stale:
                (root / name).write_bytes(files[name])
    except (_image_store.StoreError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(todo or stale),
        files=sorted(files),
        written=[layer["digest"] for layer in todo],
        bytes=sum(layer["size"] for layer in todo),
    )


if __name__ == "__main__":
    main()
