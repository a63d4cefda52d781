"""The tokenizer is deterministic, complete over bytes, and never produces the end-of-text id from text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from components.config.problems import DataError
from components.config.schema import BpeTokenizer, FileTokenizer
from components.data.tokenizer import EOS_TOKEN, Tokenizer, load_tokenizer, train_bpe
from tests.unit.data.tiny_corpus import byte_tokenizer, sentences

BYTES = byte_tokenizer()


def settings_of(vocab_size: int = 300, training_bytes: int = 100_000) -> BpeTokenizer:
    return BpeTokenizer(kind="bpe", vocab_size=vocab_size, training_bytes=training_bytes)


def file_settings(path: Path | str, vocab_size: int = 257, eos_token: str = EOS_TOKEN, padding: int = 0) -> FileTokenizer:
    return FileTokenizer(kind="file", path=str(path), vocab_size=vocab_size, padding=padding, eos_token=eos_token)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_every_text_survives_encoding_and_decoding(text: str) -> None:
    (ids,) = BYTES.encode_batch([text])
    assert BYTES.decode(ids) == text
    assert BYTES.eos_id not in ids
    assert len(ids) == len(text.encode()), "one token per byte without merges"


def test_the_end_of_text_characters_in_a_text_are_ordinary_text() -> None:
    (ids,) = BYTES.encode_batch([f"a{EOS_TOKEN}b"])
    assert BYTES.eos_id not in ids
    assert BYTES.decode(ids) == f"a{EOS_TOKEN}b"


def test_training_twice_gives_the_same_file_whatever_the_threads() -> None:
    program = (
        "from tiny_corpus import sentences; from components.data.tokenizer import *;"
        "print(train_bpe(sentences(300), BpeTokenizer(kind='bpe', vocab_size=400, training_bytes=10**6))[0].hash)"
    )
    hashes = set()
    for threads in ("1", "2", "5"):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONPATH": str(Path(__file__).parent)}
        hashes.add(
            subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True).stdout
        )
    assert hashes == {train_bpe(sentences(300), settings_of(400, 10**6))[0].hash + "\n"}


def test_only_the_first_training_bytes_are_used_cut_at_a_character() -> None:
    _, used = train_bpe(["äää", "äää"], settings_of(257, 9))
    assert used == 8, "nine bytes end inside the fifth character"
    short, _ = train_bpe(["abababab", "cdcdcdcd" * 50], settings_of(258, 8))
    assert "ab" in short.raw.get_vocab()


def test_too_little_text_for_the_vocabulary_is_an_error_with_the_numbers() -> None:
    with pytest.raises(DataError, match=r"data\.tokenizer\.vocab_size: 300 entries wanted, but 2 bytes .* give only 258"):
        train_bpe(["ab"], settings_of(300))


def test_save_and_open_give_the_same_tokenizer(tmp_path: Path) -> None:
    tokenizer, used = train_bpe(sentences(100), settings_of())
    metadata = tokenizer.save(tmp_path, "bpe", used)
    again = Tokenizer.open(tmp_path)
    assert again.hash == tokenizer.hash == metadata.hash
    assert again.encode_batch(sentences(5)) == tokenizer.encode_batch(sentences(5))
    assert (again.vocab_size, again.eos_id) == (300, 0)


def test_a_tokenizer_that_was_edited_is_an_error(tmp_path: Path) -> None:
    BYTES.save(tmp_path, "bpe", 0)
    path = tmp_path / "tokenizer.json"
    path.write_text(
        path.read_text()
        .replace('"special": true', '"special":  true')
        .replace('"add_prefix_space": false', '"add_prefix_space": true')
    )
    with pytest.raises(DataError, match="hash differs"):
        Tokenizer.open(tmp_path)


def test_an_existing_tokenizer_is_loaded_from_a_file_or_its_folder(tmp_path: Path) -> None:
    BYTES.save(tmp_path, "bpe", 0)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(file_settings(path)).hash == BYTES.hash


def test_padding_and_truncation_of_a_loaded_tokenizer_are_off(tmp_path: Path) -> None:
    raw = RawTokenizer.from_str(BYTES.raw.to_str())
    raw.enable_truncation(3)
    raw.enable_padding(length=10)
    raw.save(str(tmp_path / "tokenizer.json"))
    assert [len(ids) for ids in load_tokenizer(file_settings(tmp_path)).encode_batch(["abcdef", "a"])] == [6, 1]


def test_spare_rows_of_a_checkpoint_are_ids_that_no_text_has(tmp_path: Path) -> None:
    """Qwen3's tables have 267 rows more than its tokenizer has entries."""
    (tmp_path / "base").mkdir()
    BYTES.save(tmp_path / "base", "bpe", 0)
    padded = load_tokenizer(file_settings(tmp_path / "base", vocab_size=264, padding=7))
    assert (padded.vocab_size, padded.eos_id, padded.hash) == (264, BYTES.eos_id, BYTES.hash)
    padded.save(tmp_path, "file", 0)
    again = Tokenizer.open(tmp_path)
    assert (again.vocab_size, again.padding) == (264, 7)
    assert again.encode_batch(["abc"]) == BYTES.encode_batch(["abc"])
    with pytest.raises(DataError, match=r"257 entries and 8 of padding, but .* is 264"):
        load_tokenizer(file_settings(tmp_path, vocab_size=264, padding=8))


def test_a_wrong_vocabulary_size_is_an_error_with_both_numbers(tmp_path: Path) -> None:
    BYTES.save(tmp_path, "bpe", 0)
    with pytest.raises(DataError, match=r"257 entries, but data\.tokenizer\.vocab_size is 49152"):
        load_tokenizer(file_settings(tmp_path, vocab_size=49152))


def test_a_missing_end_of_text_token_is_an_error_that_lists_the_special_ones(tmp_path: Path) -> None:
    BYTES.save(tmp_path, "bpe", 0)
    with pytest.raises(DataError, match=r"no token '</s>'; set data\.tokenizer\.eos_token to one of .*<\|endoftext\|>"):
        load_tokenizer(file_settings(tmp_path, eos_token="</s>"))


def test_an_ordinary_word_as_end_of_text_is_an_error(tmp_path: Path) -> None:
    BYTES.save(tmp_path, "bpe", 0)
    with pytest.raises(DataError, match="'a' is an ordinary token"):
        load_tokenizer(file_settings(tmp_path, eos_token="a"))


def test_ids_with_gaps_are_an_error(tmp_path: Path) -> None:
    raw = RawTokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    raw.add_special_tokens(["<e>"])
    raw.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="ids have gaps"):
        load_tokenizer(file_settings(tmp_path, vocab_size=raw.get_vocab_size(), eos_token="<e>"))


@pytest.mark.parametrize("path", ["nowhere/tokenizer.json", "/nowhere/at/all", "./nowhere", "one-word"])
def test_a_missing_file_is_an_error_and_no_hub_id(path: str) -> None:
    with pytest.raises(DataError, match=r"data\.tokenizer\.path: no such file"):
        load_tokenizer(file_settings(path))


def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer\.json"):
        load_tokenizer(file_settings(tmp_path))
