"""Where the files of a checkpoint are: in a folder, or on the Hugging Face hub, from which they are fetched. No torch in here.

Of a hub repository come `config.json`, `tokenizer.json` and the safetensors that the index names, nothing else: no pickles.
"""

from __future__ import annotations

import json
from pathlib import Path

from components.config.problems import CheckpointError
from components.data.hub_files import HubRepository
from components.data.tokenizer import TOKENIZER_FILE
from components.huggingface.config import CONFIG_FILE

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def find_config(path: str, key: str) -> Path:
    """The folder with a checkpoint's `config.json`; of a hub id (`id@revision`) that file alone is fetched.

    Args:
        key: parameter or option that names the checkpoint, for messages.

    Raises:
        CheckpointError: neither a folder nor a hub id.
        DataError: the hub does not have it, or cannot be reached.
    """
    return Path(path) if Path(path).is_dir() else _repository(path, key).fetch(CONFIG_FILE).parent


def find_checkpoint(path: str, key: str) -> Path:
    """The folder of a whole checkpoint; a hub id (`id@revision`) is fetched into the hub's own cache first.

    Args:
        key: parameter that names the checkpoint, for messages.

    Raises:
        CheckpointError: neither a folder nor a hub id, or a damaged index.
        DataError: the hub does not have it, or cannot be reached.
    """
    if Path(path).is_dir():
        return Path(path)
    repository = _repository(path, key)
    folder = repository.fetch(CONFIG_FILE).parent
    repository.fetch_if_there(TOKENIZER_FILE)
    if (folder / SINGLE).exists() and not (folder / INDEX).exists():
        return folder  # in the cache already; without a network the hub could not say that there is no index
    index = repository.fetch_if_there(INDEX)
    for name in [SINGLE] if index is None else sorted(set(read_index(index).values())):
        repository.fetch(name)
    return folder


def read_index(path: Path) -> dict[str, str]:
    """The file that each tensor is in, by name.

    Raises:
        CheckpointError: not an index, or one that names something else than safetensors beside it.
    """
    try:
        names = {str(name): str(file) for name, file in json.loads(path.read_text(encoding="utf-8"))["weight_map"].items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path}: not an index of shards ({error!r}); fetch the checkpoint again") from None
    odd = [file for file in names.values() if not file.endswith(".safetensors") or Path(file).name != file]
    if odd:
        raise CheckpointError(f"{path}: names {odd[0]!r}, not a safetensors file beside it; choose another revision")
    return names


def _repository(path: str, key: str) -> HubRepository:
    if not HubRepository.is_named_by(path):
        raise CheckpointError(f"{key}: {path}: no such folder; give the folder of a Hugging Face checkpoint, or a hub id")
    return HubRepository(key, path)
