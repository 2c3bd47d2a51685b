#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a snapshot of a Hugging Face repository into the hub cache."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hf_snapshot
short_description: Bring a snapshot of a Hugging Face repository into the hub cache
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Makes sure that all files of one revision are in the cache, in the layout of C(huggingface_hub), and complete.
  - A finished file is never fetched again, and a file that was cut off goes on where it stopped, also in a later run. Every file that
    arrives is held against its checksum.
  - Nothing complete is ever removed. As root, the module acts as the owner of the cache, so that no file of root is left in the cache
    of a user.
  - Shows its progress while it runs, survives a lost connection, and waits for a run of the same snapshot that is still at work.
requirements:
  - huggingface_hub >= 2.4 on the host, but for O(offline=true)
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.snapshot
  - tandem.serving.progress
attributes:
  check_mode:
    support: full
    description: Asks the hub, and tells how much is missing.
  diff_mode:
    support: full
    description: Shows the number of files and bytes that are missing before and after.
options:
  revision:
    description: Commit of 40 hexadecimal digits. A branch or tag is resolved first, and kept as a ref.
    type: str
    required: true
  allow:
    description: Patterns of files to take. Empty takes all.
    type: list
    elements: str
    default: []
  ignore:
    description: Patterns of files to leave out.
    type: list
    elements: str
    default: []
  fallback_repo:
    description:
      - Repository to fetch from when O(repo) cannot be read. Its files must be the same, byte for byte, by their checksums, unless
        O(fallback_trusted=true). They are kept under the name of O(repo).
    type: str
  fallback_revision:
    description: Revision of O(fallback_repo).
    type: str
  fallback_trusted:
    description: Take the files of O(fallback_repo) even where they cannot be compared, or differ.
    type: bool
    default: false
  endpoint:
    description: Address of the hub. Without it, what C(huggingface_hub) uses.
    type: str
  token:
    description: Token for gated or private repositories. Without it, what C(huggingface_hub) finds, such as E(HF_TOKEN).
    type: str
  token_file:
    description: File on the host that holds the token.
    type: path
  workers:
    description: Files to fetch, or to verify, at once.
    type: int
    default: 8
  state:
    description: With V(verified), contents are held against their checksums too. What was verified before and not touched is not read.
    type: str
    choices: [present, verified]
    default: present
  offline:
    description: Use no network. Fails when something is missing.
    type: bool
    default: false
seealso:
  - module: tandem.serving.snapshot_sync
"""

EXAMPLES = r"""
- name: Download the weights
  tandem.serving.hf_snapshot:
    repo: Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw
    revision: 25a44fdbf16862a46b7cc9921142c6c81350af2f
    cache_dir: /var/lib/tandem/huggingface/hub
    ignore: [docs/, results/]
    token_file: /etc/tandem/hf_token
  become: true
  vars:
    ansible_python_interpreter: /opt/tandem/venv/bin/python

- name: Prove that the contents are right
  tandem.serving.hf_snapshot:
    repo: Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw
    revision: 25a44fdbf16862a46b7cc9921142c6c81350af2f
    cache_dir: /var/lib/tandem/huggingface/hub
    state: verified
    offline: true
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
source:
  description: Repository that files were fetched from. Empty when nothing was fetched.
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
  description: Bytes that were fetched.
  returned: success
  type: int
wrong:
  description: Files whose content was found wrong, and fetched again.
  returned: success
  type: list
  elements: str
manifest:
  description:
    - The files, each with its C(path), C(size), C(oid) (sha256 of large files, git's sha1 of others) and C(blob_id), and whether its
      content is C(verified), which it is once it was held against its C(oid) and as long as nobody touches it.
  returned: success
  type: list
  elements: dict
manifest_hash:
  description: sha256 over the paths, sizes and oids that are on the disk.
  returned: success
  type: str
"""

import contextlib
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.tandem.serving.plugins.module_utils._alone import alone
from ansible_collections.tandem.serving.plugins.module_utils._hub import HUB_IMPORT_ERROR, Hub, HubError, Place
from ansible_collections.tandem.serving.plugins.module_utils._manifest import File, manifest_hash, select, to_dicts
from ansible_collections.tandem.serving.plugins.module_utils._progress import ARGUMENTS, Progress
from ansible_collections.tandem.serving.plugins.module_utils._snapshot import ARGUMENTS as SNAPSHOT_ARGUMENTS
from ansible_collections.tandem.serving.plugins.module_utils._snapshot import (
    Snapshot,
    SnapshotError,
    acting_as_owner,
    read_ref,
)


class Task:
    """What the options ask for, held against the cache and the hub. Everything may raise SnapshotError."""

    def __init__(self, params: dict[str, Any], hub: Hub | None, progress: Progress, check_mode: bool) -> None:
        self.params, self.hub, self.progress, self.check_mode = params, hub, progress, check_mode
        self.cache = Path(params["cache_dir"])
        self.place = Place(params["repo"], self._commit())
        self.snapshot = Snapshot(self.cache, self.place.repo, self.place.revision)

    def _commit(self) -> str:
        repo, revision = self.params["repo"], self.params["revision"]
        if len(revision) == 40:
            return str(revision)
        return self.hub.revision(Place(repo, revision)) if self.hub else read_ref(self.cache, repo, revision)

    def run(self) -> dict[str, Any]:
        """Do it, and tell the result of the module."""
        with contextlib.nullcontext() if self.check_mode else alone(self.snapshot.blobs):
            return self._run()

    def _run(self) -> dict[str, Any]:
        kept = self.snapshot.read_tree()
        tree, source = kept, self.place
        todo: list[File] = []
        try:
            if tree is None:
                tree = self._tree()
            files, wrong, todo = self._examine(tree)
            if todo:
                self._check_access(todo)
            offered = tree
        except HubError as refused:
            source, offered = self._fall_back(refused)
            if tree is None or {file.oid for file in todo} - {file.oid for file in offered}:
                if not self.params["fallback_trusted"]:
                    raise SnapshotError(
                        f"{refused} The files of the fallback {source.repo} are not known to be the same. "
                        "Set fallback_trusted to take them all the same."
                    ) from refused
                tree = offered
                files, wrong, todo = self._examine(tree)

        missing = self.snapshot.bytes_needed(todo)
        self.snapshot.check_disk(todo)
        links = [file for file in self.snapshot.missing(files) if file not in todo]
        if not self.check_mode:
            self.snapshot.write_tree(tree)
            if self.params["revision"] != self.place.revision:
                self.snapshot.write_ref(self.params["revision"])
            self.snapshot.write_ref("main", replace=False)
            for file in links:
                self.snapshot.link(file)
            if todo and self.hub:
                fetch = self.hub.fetcher(source, {file.oid: file.path for file in offered})
                self.snapshot.fetch(todo, fetch, self.params["workers"], self.progress)
        verified = self.snapshot.verified(files)
        return {
            "changed": bool(todo or links or kept is None),
            "snapshot": str(self.snapshot.path),
            "repo": self.place.repo,
            "revision": self.place.revision,
            "source": source.repo if todo else "",
            "files": len(files),
            "bytes_total": sum(file.size for file in files),
            "bytes_missing": missing,
            "bytes_fetched": 0 if self.check_mode else missing,
            "wrong": [file.path for file in wrong],
            "manifest": [item | {"verified": item["oid"] in verified} for item in to_dicts(files)],
            "manifest_hash": manifest_hash(self.snapshot.found(files)),
            "diff": {
                "before": {"files_missing": len(todo) + len(links), "bytes_missing": missing},
                "after": {"files_missing": 0, "bytes_missing": 0},
            },
        }

    def _tree(self) -> list[File]:
        if self.hub is None:
            raise SnapshotError(
                f"{self.snapshot.folder} does not tell which files {self.place.repo} has at {self.place.revision}. "
                "Run once with a network, or import the snapshot."
            )
        return self.hub.tree(self.place)

    def _examine(self, tree: list[File]) -> tuple[list[File], list[File], list[File]]:
        """The files that are asked for, those of them whose content is wrong, and those to fetch."""
        allow, ignore = self.params["allow"], self.params["ignore"]
        files = select(tree, allow, ignore)
        if not files:
            raise SnapshotError(f"No file of {self.place.repo} matches allow {allow} and not ignore {ignore}.")
        missing = [file for file in files if not self.snapshot.has(file) and not self.snapshot.has_blob(file)]
        wrong = []
        if self.params["state"] == "verified":
            present = [file for file in files if file not in missing]
            wrong = self.snapshot.wrong(present, self.params["workers"], self.progress)
        return files, wrong, missing + wrong

    def _check_access(self, todo: list[File]) -> None:
        if self.hub is None:
            names = ", ".join(file.path for file in todo[:5])
            raise SnapshotError(
                f"{len(todo)} files of {self.place.repo} are missing or wrong, and offline is set: {names}."
            )
        self.hub.check_access(self.place, todo[0].path)

    def _fall_back(self, refused: HubError) -> tuple[Place, list[File]]:
        if self.hub is None or not self.params["fallback_repo"]:
            raise refused
        place = Place(self.params["fallback_repo"], self.params["fallback_revision"])
        try:
            return place, self.hub.tree(place)
        except HubError as error:
            raise SnapshotError(f"{refused} The fallback neither: {error}") from error


def read_token(params: dict[str, Any]) -> str | None:
    """The token, from the option or from the file."""
    if params["token_file"] is None:
        return params["token"] or None
    try:
        return Path(params["token_file"]).read_text().strip() or None
    except OSError as error:
        raise SnapshotError(f"The file of the token cannot be read: {error}") from error


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            **SNAPSHOT_ARGUMENTS,
            "allow": {"type": "list", "elements": "str", "default": []},
            "ignore": {"type": "list", "elements": "str", "default": []},
            "fallback_repo": {"type": "str"},
            "fallback_revision": {"type": "str"},
            "fallback_trusted": {"type": "bool", "default": False},
            "endpoint": {"type": "str"},
            "token": {"type": "str", "no_log": True},
            "token_file": {"type": "path", "no_log": False},
            "workers": {"type": "int", "default": 8},
            "state": {"type": "str", "choices": ["present", "verified"], "default": "present"},
            "offline": {"type": "bool", "default": False},
            **ARGUMENTS,
        },
        mutually_exclusive=[("token", "token_file")],
        required_together=[("fallback_repo", "fallback_revision")],
        supports_check_mode=True,
    )
    params = module.params
    if HUB_IMPORT_ERROR and not params["offline"]:
        module.fail_json(msg=missing_required_lib("huggingface_hub"), exception=HUB_IMPORT_ERROR)
    try:
        # Before acting as the owner of the cache, who may not read the token.
        hub = None if params["offline"] else Hub(params["endpoint"], read_token(params))
        progress = Progress(params["progress_file"], phase="look")
        with acting_as_owner(Path(params["cache_dir"])):
            result = Task(params, hub, progress, module.check_mode).run()
    except SnapshotError as error:
        module.fail_json(msg=str(error))
    except PermissionError as error:
        module.fail_json(msg=f"{error}. Everything in {params['cache_dir']} should belong to the owner of that folder.")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
