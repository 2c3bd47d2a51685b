# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Hugging Face hub, asked through huggingface_hub, with errors worded for the person who has to mend them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ansible_collections.tandem.serving.plugins.module_utils._manifest import File
from ansible_collections.tandem.serving.plugins.module_utils._snapshot import Fetch, RetryError, SnapshotError

HUB_IMPORT_ERROR: str | None = None
try:
    from huggingface_hub import HfApi, constants, get_token, hf_hub_url
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.file_download import get_hf_file_metadata, http_get
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars
except ImportError:
    HUB_IMPORT_ERROR = traceback.format_exc()
else:
    disable_progress_bars()
    # A broken connection loses the piece that was not written yet.
    constants.DOWNLOAD_CHUNK_SIZE = 2**20
    # Else the first request waits for a list at huggingface.co, whatever the endpoint: 10 s where no name server answers.
    constants.HF_HUB_DISABLE_TELEMETRY = True

_TRIES = 4
_PASSING = (408, 429, 500, 502, 503, 504)

Answer = TypeVar("Answer")


class HubError(SnapshotError):
    """The hub does not give what was asked for."""


@dataclass(frozen=True)
class Place:
    """A revision of a repository on the hub."""

    repo: str
    revision: str


class Hub:
    """``endpoint`` None means the library's own default, ``token`` None the one that the library finds."""

    def __init__(self, endpoint: str | None, token: str | None) -> None:
        self._api = HfApi(endpoint=endpoint, token=token or get_token() or False)
        self.endpoint = self._api.endpoint

    def revision(self, place: Place) -> str:
        """The commit that a revision means."""
        return str(self._ask(place, lambda: self._api.model_info(place.repo, revision=place.revision).sha))

    def tree(self, place: Place) -> list[File]:
        """All files of a revision."""

        def ask() -> list[File]:
            found = self._api.list_repo_tree(place.repo, recursive=True, revision=place.revision)
            files = [item for item in found if isinstance(item, RepoFile)]
            return [
                File(item.path, item.size, item.lfs.sha256 if item.lfs else item.blob_id, item.blob_id)
                for item in files
            ]

        return self._ask(place, ask)

    def check_access(self, place: Place, path: str) -> None:
        """Ask for the head of a file, since a gated repository lists its files and then refuses them."""
        url = self._url(place, path)
        self._ask(place, lambda: get_hf_file_metadata(url, token=self._api.token, endpoint=self.endpoint))

    def fetcher(self, place: Place, paths: dict[str, str]) -> Fetch:
        """A function that appends the rest of a file to its partial file. ``paths`` tells where the hub has each oid."""
        headers = build_hf_headers(token=self._api.token)
        # The size of a compressed answer says nothing, and a range of it neither.
        headers["Accept-Encoding"] = "identity"

        def fetch(file: File, partial: Path) -> bool:
            try:
                with partial.open("ab") as out:
                    url = self._url(place, paths[file.oid])
                    http_get(url, out, resume_size=out.tell(), headers=headers, expected_size=file.size)
            except HfHubHTTPError as error:
                if error.response.status_code == 416:
                    partial.unlink()
                elif error.response.status_code not in _PASSING:
                    raise HubError(self._explain(error, place)) from error
                raise RetryError(f"the hub answered {error.response.status_code}", _retry_after(error)) from error
            except HTTPError as error:
                raise RetryError(f"the connection broke: {error}") from error
            except OSError as error:
                if error.errno is not None:
                    raise
                # What the library raises for a size that it did not expect.
                raise RetryError(str(error)) from error
            return False

        return fetch

    def _url(self, place: Place, path: str) -> str:
        return str(hf_hub_url(place.repo, path, revision=place.revision, endpoint=self.endpoint))

    def _ask(self, place: Place, question: Callable[[], Answer]) -> Answer:
        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                return question()
            except HTTPError as error:
                passing = not isinstance(error, HfHubHTTPError) or error.response.status_code in _PASSING
                if last or not passing:
                    raise HubError(self._explain(error, place)) from error
                time.sleep(_retry_after(error) or 1)
        raise RuntimeError("not reached")

    def _explain(self, error: Any, place: Place) -> str:
        """A sentence that tells 401, 403 and 404 apart, and what to do."""
        page = f"{self.endpoint}/{place.repo}"
        if not isinstance(error, HfHubHTTPError):
            return f"The hub {self.endpoint} cannot be reached: {error}. Check the endpoint, the proxy and the network."
        status = error.response.status_code
        if isinstance(error, GatedRepoError):
            if status == 401:
                return f"{place.repo} is gated and no token was sent (401). Accept its licence on {page}, then set a token of that account."
            return f"{place.repo} is gated and the account of the token has no access ({status}). Accept its licence on {page} with it."
        if isinstance(error, RevisionNotFoundError):
            return f"{place.repo} has no revision {place.revision} ({status}). See {page}/commits/main."
        if isinstance(error, RemoteEntryNotFoundError):
            return f"{place.repo} at {place.revision} lacks a file that it lists ({status}): {error.response.url}."
        if isinstance(error, RepositoryNotFoundError):
            hint = (
                "or it is private and needs a token" if status == 401 else "or the account of the token may not see it"
            )
            return f"{page} does not exist, {hint} ({status}). Check the name of the repository."
        if status == 401:
            return f"The hub does not know the token that was sent (401). Make a new one on {self.endpoint}/settings/tokens."
        if status == 403:
            return f"The token may not read {place.repo} (403). Give it the right to read on {self.endpoint}/settings/tokens."
        return f"The hub answered {status} for {place.repo}: {error.response.url}."


def _retry_after(error: Any) -> float:
    """Seconds that the hub asks to wait, 0 when it does not say."""
    value = error.response.headers.get("Retry-After", "") if isinstance(error, HfHubHTTPError) else ""
    return float(value) if value.isdigit() else 0.0
