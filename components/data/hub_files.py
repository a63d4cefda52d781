"""Single files of a model repository on the Hugging Face hub, which a parameter names as `id@revision`."""

from __future__ import annotations

from pathlib import Path

from components.config.problems import DISK_TROUBLES, DataError, Problem
from components.data.hub import hub_errors, reason


class HubRepository:
    """A repository whose files land in the hub client's own cache; all come from the commit that the first one came from."""

    def __init__(self, key: str, value: str) -> None:
        """Takes `id` or `id@revision`; nothing is asked yet.

        Args:
            key: parameter that names the repository, for messages.
        """
        self._key, self._value = key, value
        self._id, _, revision = value.partition("@")
        self._revision = revision or "main"

    @staticmethod
    def is_named_by(value: str) -> bool:
        """Is the value a hub id, and not the path of a file or a folder that is missing?"""
        hub_id = value.partition("@")[0]
        return hub_id.count("/") == 1 and not hub_id.startswith((".", "/")) and not hub_id.endswith((".json", "/"))

    def fetch(self, name: str) -> Path:
        """A file in the repository's root.

        Raises:
            DataError: no such repository, revision or file, no permission, or no network.
        """
        try:
            return self._download(name)
        except hub_errors() as error:
            raise self._said(error, name) from None

    def fetch_if_there(self, name: str) -> Path | None:
        """The same, or None when the repository has no such file."""
        from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache
        from huggingface_hub.errors import RemoteEntryNotFoundError

        try:
            if try_to_load_from_cache(self._id, name, revision=self._revision) is _CACHED_NO_EXIST:
                return None  # known without a network
            return self._download(name)
        except RemoteEntryNotFoundError:
            return None
        except hub_errors() as error:
            raise self._said(error, name) from None

    def _download(self, name: str) -> Path:
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(self._id, name, revision=self._revision))
        self._revision = path.parent.name  # the cache's folders are named by commit
        return path

    def _said(self, error: Exception, name: str) -> Exception:
        if isinstance(error, OSError) and error.errno in DISK_TROUBLES:
            return error
        return DataError(str(Problem(self._key, self._value, *self._trouble(error, name))))

    def _trouble(self, error: Exception, name: str) -> tuple[str, str]:
        """What is wrong, and what to do."""
        from huggingface_hub import constants, errors

        if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # why the hub could not be asked; the error itself says that the cache has no copy either
        local = "or give a local path"
        if isinstance(error, errors.GatedRepoError):
            page = f"{constants.ENDPOINT}/{self._id}"
            return "the repository is gated", f"accept its terms at {page} and set HF_TOKEN to a token of that account, {local}"
        if isinstance(error, errors.RepositoryNotFoundError):
            return (
                f"no such repository on {constants.ENDPOINT}, or a private one",
                f"check the id, set HF_TOKEN to a token that may read it, {local}",
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return "the repository has no such revision", "write `id@revision` with one of its branches, tags or commits"
        if isinstance(error, errors.RemoteEntryNotFoundError):
            return f"the repository has no {name}", "choose another repository or revision"
        if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
            refused = f"{constants.ENDPOINT} refuses to give {name} ({error.response.status_code})"
            return refused, f"set HF_TOKEN to a valid token that may read the repository, {local}"
        remedy = f"check the network, HF_ENDPOINT and HF_HUB_OFFLINE, {local}"
        return f"{name} cannot be fetched from {constants.ENDPOINT}: {reason(error)}", remedy
