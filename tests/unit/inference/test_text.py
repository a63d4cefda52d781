"""Text that arrives token by token."""

from __future__ import annotations

from collections.abc import Sequence

from components.inference.text import TextStream


def _decode(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", errors="replace")


def test_a_character_is_shown_when_its_last_byte_is_there() -> None:
    text = TextStream(_decode)
    assert [text.add(byte) for byte in "aé€b".encode()] == ["a", "", "é", "", "", "€", "b"]
    assert text.end() == ""


def test_the_end_shows_what_never_became_a_character() -> None:
    text = TextStream(_decode)
    assert [text.add(byte) for byte in b"a\xe2\x82"] == ["a", "", ""]
    assert text.end() == "\ufffd"


def test_the_blank_after_the_prompt_is_shown() -> None:
    """A decoder that takes the blank off the front of all that it is given, as SentencePiece tokenizers do."""
    text = TextStream(lambda tokens: _decode(tokens).removeprefix(" "), b" Once upon a time")
    assert "".join(text.add(byte) for byte in b" there was") + text.end() == " there was"
