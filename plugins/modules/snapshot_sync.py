#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copy a snapshot from another host's hub cache."""

from __future__ import annotations

DOCUMENTATION = r"""
module: snapshot_sync
short_description: Copy a snapshot from another host's hub cache
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Runs on the host that lacks files, and fetches them by rsync from a daemon on the host that has them, several at once and over
    all addresses that are given. The role P(tandem.serving.share#role) starts and ends that daemon.
  - Only files that the manifest names and that are missing are copied. A file that was cut off goes on where it stopped.
  - Every file that arrives is held against its checksum before it takes its place. Where the manifest says that the other host's copy
    is verified, and all of it came at once, that of rsync, which both ends take anyway, is enough.
  - Nothing complete is ever removed. As root, the module acts as the owner of the cache.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.snapshot
  - tandem.serving.share
  - tandem.serving.progress
attributes:
  check_mode:
    support: full
    description: Tells how much is missing, without asking the other host.
  diff_mode:
    support: full
    description: Shows the number of files and bytes that are missing before and after.
options:
  manifest:
    description: The files, as RV(tandem.serving.hf_snapshot#module:manifest) has them.
    type: list
    elements: dict
    required: true
  verify:
    description: Hold the contents of all files against their checksums. What was verified before and not touched is not read.
    type: bool
    default: false
seealso:
  - module: tandem.serving.hf_snapshot
"""

EXAMPLES = r"""
- name: Copy the weights over both halves of the cable
  tandem.serving.snapshot_sync:
    repo: Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw
    revision: 25a44fdbf16862a46b7cc9921142c6c81350af2f
    cache_dir: /var/lib/tandem/huggingface/hub
    manifest: "{{ hostvars['spark1'].downloaded.manifest }}"
    sources: [192.0.2.1, 198.51.100.1]
    share: weights/var/lib/tandem/huggingface/hub
    password: "{{ hostvars['spark1'].share_password }}"
  become: true
"""

RETURN = r"""
snapshot:
  description: Folder of the snapshot.
  returned: success
  type: str
repo:
  description: The repository.
  returned: success
  type: str
revision:
  description: The commit.
  returned: success
  type: str
files:
  description: Number of files.
  returned: success
  type: int
bytes_total:
  description: Size of all files.
  returned: success
  type: int
bytes_missing:
  description: Bytes that were missing before.
  returned: success
  type: int
bytes_fetched:
  description: Bytes that were copied.
  returned: success
  type: int
seconds:
  description: How long the copy took, checksums included.
  returned: success
  type: float
wrong:
  description: Files whose content was found wrong, and copied again.
  returned: success
  type: list
  elements: str
manifest_hash:
  description: sha256 over the paths, sizes and oids that are on the disk.
  returned: success
  type: str
"""

import contextlib
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _rsync
from ansible_collections.tandem.serving.plugins.module_utils._alone import alone
from ansible_collections.tandem.serving.plugins.module_utils._manifest import (
    File,
    ManifestError,
    from_dicts,
    manifest_hash,
)
from ansible_collections.tandem.serving.plugins.module_utils._progress import ARGUMENTS, Progress
from ansible_collections.tandem.serving.plugins.module_utils._snapshot import (
    ARGUMENTS as SNAPSHOT_ARGUMENTS,
)
from ansible_collections.tandem.serving.plugins.module_utils._snapshot import (
    Fetch,
    RetryError,
    Snapshot,
    SnapshotError,
    acting_as_owner,
)


def fetcher(params: dict[str, Any], snapshot: Snapshot, held: int) -> Fetch:
    """A function that lets rsync append the rest of a blob to its partial file. Raises RsyncError."""
    share = _rsync.Share(params, held)
    verified = {item["oid"] for item in params["manifest"] if item.get("verified")}

    def fetch(file: File, target: Path) -> bool:
        whole = not target.exists()
        try:
            # Not the blob, which caches on several disks keep elsewhere, or do not have at all.
            share.append(f"{snapshot.folder.name}/snapshots/{snapshot.revision}/{file.path}", target)
        except _rsync.PassingError as error:
            raise RetryError(str(error)) from error
        except _rsync.RsyncError as error:
            raise SnapshotError(f"{file.path} of {snapshot.repo} does not arrive: {error}") from error
        return whole and file.oid in verified

    return fetch


def sync(params: dict[str, Any], progress: Progress, check_mode: bool) -> dict[str, Any]:
    """Do it, and tell the result of the module. Raises SnapshotError or RsyncError."""
    snapshot = Snapshot(Path(params["cache_dir"]), params["repo"], params["revision"])
    files = from_dicts(params["manifest"])
    with contextlib.nullcontext(-1) if check_mode else alone(snapshot.blobs) as held:
        todo = [file for file in files if not snapshot.has(file) and not snapshot.has_blob(file)]
        wrong = []
        if params["verify"]:
            wrong = snapshot.wrong([file for file in files if file not in todo], params["streams"], progress)
            todo += wrong
        missing = snapshot.bytes_needed(todo)
        snapshot.check_disk(todo)
        links = [file for file in snapshot.missing(files) if file not in todo]
        known = snapshot.read_tree() is not None
        began = time.monotonic()
        if not check_mode:
            if todo:
                snapshot.fetch(todo, fetcher(params, snapshot, held), params["streams"], progress)
            for file in links:
                snapshot.link(file)
            if not known:
                snapshot.write_tree(files)
            snapshot.write_ref("main", replace=False)
    return {
        "changed": bool(todo or links or not known),
        "snapshot": str(snapshot.path),
        "repo": snapshot.repo,
        "revision": snapshot.revision,
        "files": len(files),
        "bytes_total": sum(file.size for file in files),
        "bytes_missing": missing,
        "bytes_fetched": 0 if check_mode else missing,
        "seconds": round(time.monotonic() - began, 2),
        "wrong": [file.path for file in wrong],
        "manifest_hash": manifest_hash(snapshot.found(files)),
        "diff": {
            "before": {"files_missing": len(todo) + len(links), "bytes_missing": missing},
            "after": {"files_missing": 0, "bytes_missing": 0},
        },
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            **SNAPSHOT_ARGUMENTS,
            **_rsync.ARGUMENTS,
            "manifest": {"type": "list", "elements": "dict", "required": True},
            "verify": {"type": "bool", "default": False},
            **ARGUMENTS,
        },
        supports_check_mode=True,
    )
    params = module.params

    module.get_bin_path("rsync", required=not module.check_mode)
    try:
        progress = Progress(params["progress_file"], phase="look")
        with acting_as_owner(Path(params["cache_dir"])):
            result = sync(params, progress, module.check_mode)
    except (SnapshotError, ManifestError, _rsync.RsyncError) as error:
        module.fail_json(msg=str(error))
    except PermissionError as error:
        module.fail_json(msg=f"{error}. Everything in {params['cache_dir']} should belong to the owner of that folder.")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
