"""A local copy of a hub data set: which files belong to a configuration.

`datasets` itself insists on the files of the first configuration, which a partial copy (one sample of FineWeb-Edu) does not have.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from components.config.problems import DataError

CARD = "README.md"


def local_files(folder: Path, config: str) -> list[Path]:
    """The parquet files of a configuration's `train` split, sorted.

    The globs come from the `configs` of the folder's README.md, as on the hub. Without one, configuration `sample-10BT` is looked
    for in `sample-10BT/`, `sample/10BT/` and `data/sample-10BT/`, and `default` in `data/` at any depth.

    Raises:
        DataError: no such configuration, or none of its files is there.
    """
    configs = _card_configs(folder)
    patterns = configs.get(config, []) if configs else _usual_patterns(config)
    for pattern in patterns:
        if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
            raise DataError(f"{folder / CARD}: data_files {pattern!r} leads out of the folder; use paths below it")
    found = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.suffix == ".parquet"})
    if not found:
        known = f"configurations in {CARD}: {', '.join(configs)}" if configs else f"no {CARD} with configurations"
        raise DataError(
            f"{folder}: no parquet files of configuration {config!r} (looked for {', '.join(patterns) or 'nothing'}; {known}); set "
            "data.source.config, or copy the files in the hub's layout"
        )
    return found


def _usual_patterns(config: str) -> list[str]:
    if config == "default":
        return ["data/**/*.parquet"]
    return [f"{config}/**/*.parquet", f"{config.replace('-', '/', 1)}/**/*.parquet", f"data/{config}/**/*.parquet"]


def _card_configs(folder: Path) -> dict[str, list[str]]:
    from huggingface_hub import DatasetCard

    card = folder / CARD
    if not card.is_file():
        return {}
    try:
        configs = DatasetCard.load(card).data.to_dict().get("configs") or []
        return {entry["config_name"]: _train_patterns(entry["data_files"]) for entry in configs}
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{card}: its YAML header is not a hub data set card ({reason}); mend or remove it") from None


def _train_patterns(data_files: Any) -> list[str]:
    """`data_files` of a card: a glob, a list of globs, or a list of {split, path} with one or several globs."""
    entries = data_files if isinstance(data_files, list) else [data_files]
    patterns: list[str] = []
    for entry in entries:
        if isinstance(entry, dict) and entry["split"] != "train":
            continue
        path = entry["path"] if isinstance(entry, dict) else entry
        patterns += path if isinstance(path, list) else [path]
    return patterns
