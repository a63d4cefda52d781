"""Token ids to readable text while they arrive: a character whose bytes are spread over tokens waits until it is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"  # what a decoder shows for bytes that are not a whole character


class TextStream:
    """Turns tokens that arrive after a prompt into pieces of text that add up to the decoded whole.

    They are decoded together with the prompt: some tokenizers drop the blank in front of what they take for the first word.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode, self._tokens, self._shown = decode, list(prompt), len(decode(prompt))

    def add(self, token: int) -> str:
        """The text that is now certain, possibly none."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        return "" if text.endswith(UNFINISHED) else self._show(text)

    def end(self) -> str:
        """What is left, unfinished characters included."""
        return self._show(self._decode(self._tokens))

    def _show(self, text: str) -> str:
        piece, self._shown = text[self._shown :], max(self._shown, len(text))
        return piece
