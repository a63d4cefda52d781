"""The section `backbones` of `params.yaml`: pretrained checkpoints that expansions and controls start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from components.config.section import Section


class BackboneBlock(Section):
    """A Hugging Face checkpoint of a Llama or Qwen3, as written in the file; the import checks that the shape is its own."""

    path: str = Field(min_length=1, description="folder of the checkpoint, or a hub id (`id@revision` pins it)")
    model: Mapping[str, Any] = Field(default={}, description="keys of `model` that differ for this backbone")
