#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at the layers that Docker holds."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_layers_info
short_description: Look at the layers that Docker holds
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Describes the layers of an image, or says which of some layers this host's Docker lacks.
  - Reads Docker's image store, that of the graph drivers or of containerd, and therefore runs as root.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
requirements:
  - docker
  - ctr, where Docker uses the containerd image store
options:
  image:
    description: Name or Id of an image on this host, whose layers to describe. Either this or O(layers).
    type: str
  layers:
    description: Layers as RV(layers) described them on another host, to look for on this one.
    type: list
    elements: dict
"""

EXAMPLES = r"""
- name: Describe the image's layers on the head
  tandem.serving.image_layers_info:
    image: localhost/tandem/engine:0123456789ab
  register: head

- name: Ask a worker what it lacks of them
  tandem.serving.image_layers_info:
    layers: "{{ head.layers }}"
  register: worker
"""

RETURN = r"""
layers:
  description:
    - The image's layers from the bottom up, each with C(diff_id) and C(chain_id), and of the blob that the store can give the C(digest),
      the C(size) in bytes and the C(media_type).
    - With O(layers), those of them that this host lacks.
  returned: always
  type: list
  elements: dict
bytes:
  description: Sum of the sizes of RV(layers).
  returned: always
  type: int
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _image_store


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"image": {"type": "str"}, "layers": {"type": "list", "elements": "dict"}},
        mutually_exclusive=[("image", "layers")],
        required_one_of=[("image", "layers")],
        supports_check_mode=True,
    )
    try:
        docker, store = _image_store.engine(module)
        if module.params["image"]:
            layers = store.image(_image_store.inspect(module, docker, module.params["image"]))["layers"]
        else:
            layers = store.lacks(module.params["layers"])
    except (_image_store.StoreError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, layers=layers, bytes=sum(layer["size"] for layer in layers))


if __name__ == "__main__":
    main()
