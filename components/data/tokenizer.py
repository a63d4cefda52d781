"""The tokenizer of a study: trained here on the corpus, or an existing `tokenizer.json`.

Text never produces the end-of-text id: a document that contains the characters `<|endoftext|>` is tokenized as those characters. So
one EOS per document is exact, which the packing and the evaluation rely on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from components.config.problems import DataError
from components.config.schema import BpeTokenizer, FileTokenizer
from components.results import Record, read_record, write_record

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer

EOS_TOKEN = "<|endoftext|>"
TOKENIZER_FILE = "tokenizer.json"
METADATA_FILE = "metadata.json"


class TokenizerMetadata(Record):
    """`artifacts/tokenizer/metadata.json`.

    Attributes:
        hash: SHA-256 of `tokenizer.json`.
        training_bytes: UTF-8 bytes the BPE was trained on; 0 for one that was loaded.
    """

    version: Literal[1]
    kind: Literal["bpe", "file"]
    vocab_size: int
    eos_token: str
    eos_id: int
    hash: str
    training_bytes: int


class Tokenizer:
    """A loaded tokenizer.

    Attributes:
        padding: spare ids that a checkpoint's tables have past the entries; no text has them.
        vocab_size: entries, special tokens included, and padding; every id is below it.
        eos_id: id of the token that ends a document.
        hash: SHA-256 of its file.
    """

    def __init__(self, raw: RawTokenizer, eos_token: str, where: str, padding: int = 0) -> None:
        """Wraps a tokenizer of the `tokenizers` library.

        Raises:
            DataError: there is no such end-of-text token, or ordinary text can produce it, or ids have gaps.
        """
        raw.no_padding()
        raw.no_truncation()
        raw.encode_special_tokens = True  # special tokens that stand in a text are text
        self.raw = raw
        self.eos_token = eos_token
        n_entries = raw.get_vocab_size(with_added_tokens=True)
        self.padding, self.vocab_size = padding, n_entries + padding
        self.eos_id = _checked_eos_id(raw, eos_token, where)
        if max(raw.get_vocab(with_added_tokens=True).values()) >= n_entries:
            raise DataError(f"{where}: its ids have gaps: {n_entries} entries, but larger ids; use a tokenizer without gaps")
        self._file = raw.to_str(pretty=True) + "\n"
        self.hash = hashlib.sha256(self._file.encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without any special token; the library's threads share the work."""
        return [encoding.ids for encoding in self.raw.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids; special tokens are left out."""
        return self.raw.decode(list(ids))

    def save(self, folder: Path, kind: Literal["bpe", "file"], training_bytes: int) -> TokenizerMetadata:
        """Writes `tokenizer.json` and `metadata.json`."""
        metadata = TokenizerMetadata(
            version=1,
            kind=kind,
            vocab_size=self.vocab_size,
            eos_token=self.eos_token,
            eos_id=self.eos_id,
            hash=self.hash,
            training_bytes=training_bytes,
        )
        (folder / TOKENIZER_FILE).write_text(self._file, encoding="utf-8")
        write_record(metadata, folder / METADATA_FILE)
        return metadata

    @classmethod
    def open(cls, folder: Path) -> Tokenizer:
        """The tokenizer of the study, from `artifacts/tokenizer`.

        Raises:
            DataError: the file is damaged, or is not the one that the metadata describes.
            ResultsError: no metadata; the stage has not run.
        """
        metadata = read_record(TokenizerMetadata, folder / METADATA_FILE)
        path = folder / TOKENIZER_FILE
        raw = read_tokenizer(path)
        padding = metadata.vocab_size - raw.get_vocab_size(with_added_tokens=True)
        tokenizer = cls(raw, metadata.eos_token, str(path), padding)
        if tokenizer.hash != metadata.hash:
            raise DataError(f"{path}: changed since it was made (hash differs); run `dvc repro -f tokenize`")
        return tokenizer


def train_bpe(texts: Iterable[str], settings: BpeTokenizer) -> tuple[Tokenizer, int]:
    """A byte-level BPE trained on the first `training_bytes` UTF-8 bytes of `texts`, and how many there were. Deterministic.

    Raises:
        DataError: the text has too few different pieces for `vocab_size`.
    """
    from tokenizers import Tokenizer as RawTokenizer
    from tokenizers import decoders, models, pre_tokenizers, trainers

    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    budget = _Budget(settings.training_bytes)
    raw.train_from_iterator(budget.cut(texts), trainer)
    if raw.get_vocab_size() < settings.vocab_size:
        raise DataError(
            f"data.tokenizer.vocab_size: {settings.vocab_size} entries wanted, but {budget.used} bytes of training text give only "
            f"{raw.get_vocab_size()}; lower vocab_size, raise training_bytes or add documents"
        )
    return Tokenizer(raw, EOS_TOKEN, "trained tokenizer"), budget.used


def load_tokenizer(settings: FileTokenizer) -> Tokenizer:
    """The existing tokenizer that `data.tokenizer` names: a file, a folder with a `tokenizer.json`, or a hub id (`id@revision`).

    Raises:
        DataError: it cannot be found or read, or has another vocabulary size or no such end-of-text token.
    """
    path = _find(settings.path)
    raw = read_tokenizer(path)
    n_entries = raw.get_vocab_size(with_added_tokens=True)
    if n_entries + settings.padding != settings.vocab_size:
        spare = f" and {settings.padding} of padding" if settings.padding else ""
        raise DataError(
            f"{settings.path}: {n_entries} entries{spare}, but data.tokenizer.vocab_size is {settings.vocab_size}; set it to "
            f"{n_entries + settings.padding} or choose another tokenizer"
        )
    return Tokenizer(raw, settings.eos_token, settings.path, settings.padding)


class _Budget:
    """Passes texts on until a number of UTF-8 bytes is used up; cuts the last one at a character."""

    def __init__(self, n_bytes: int) -> None:
        self._left = n_bytes
        self.used = 0

    def cut(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            data = text.encode()
            part = text if len(data) <= self._left else data[: self._left].decode(errors="ignore")
            self._left -= len(data)
            self.used += min(len(data), len(part.encode()))
            yield part
            if self._left <= 0:
                return


def _find(path: str) -> Path:
    local = Path(path)
    if local.is_dir():
        local = local / TOKENIZER_FILE
    if local.is_file():
        return local
    from components.data.hub_files import HubRepository

    if not HubRepository.is_named_by(path):
        raise DataError(f"data.tokenizer.path: no such file {local}; give a tokenizer.json, a folder that holds one, or a hub id")
    return HubRepository("data.tokenizer.path", path).fetch(TOKENIZER_FILE)


def read_tokenizer(path: Path) -> RawTokenizer:
    """The tokenizer of the `tokenizers` library in a file.

    Raises:
        DataError: it is none.
    """
    from tokenizers import Tokenizer as RawTokenizer

    try:
        return RawTokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception for every bad file
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: not a tokenizer.json of the tokenizers library ({reason}); replace the file") from None


def _checked_eos_id(raw: RawTokenizer, eos_token: str, where: str) -> int:
    eos_id = raw.token_to_id(eos_token)
    if eos_id is None:
        special = [token.content for token in raw.get_added_tokens_decoder().values() if token.special]
        shown = ", ".join(special[:20]) or "none"
        raise DataError(f"{where}: no token {eos_token!r}; set data.tokenizer.eos_token to one of its special tokens: {shown}")
    if eos_id in raw.encode(f"a {eos_token} b", add_special_tokens=False).ids:
        raise DataError(
            f"{where}: {eos_token!r} is an ordinary token, so a text could end its own document; choose a special token as "
            "data.tokenizer.eos_token"
        )
    return int(eos_id)
