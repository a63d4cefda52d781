"""Sections to HTML and Markdown: one self-contained page, and its twin for terminals, code review and MLflow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from components.reporting.sections import Section
from components.reporting.tables import Row, Table

TITLE = "Telescopic study"
VERDICTS = {  # a longer one before one that ends it
    "not reproduced": "bad",
    "reproduced": "good",
    "inconclusive": "open",
    "not run": "none",
    "win": "good",
    "loss": "bad",
    "no difference": "open",
    "no interval": "none",
    "differs": "open",
    "not evaluated": "bad",
}


def render_html(sections: Sequence[Section]) -> str:
    """One HTML page that needs nothing beside it: style, figures and all inside."""
    from jinja2 import Environment, StrictUndefined

    source = files("components.reporting").joinpath("template.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render(title=TITLE, sections=sections, split=split_verdict)


def split_verdict(cell: str) -> tuple[str, str, str]:
    """A cell's text before a verdict that ends it, the verdict or "", and the style class that colours it."""
    for word, style in VERDICTS.items():
        if cell == word or cell.endswith(f" {word}"):
            return cell.removesuffix(word), word, style
    return cell, "", ""


def render_markdown(sections: Sequence[Section]) -> str:
    """The same report as Markdown; figures are links to the PNG files beside it."""
    lines = [f"# {TITLE}", ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for paragraph in section.paragraphs:
            lines += [paragraph, ""]
        for figure in section.figures:
            lines += [f"### {figure.title}", "", f"![{figure.alt}](figures/{figure.name}.png)", "", figure.caption, ""]
        for table in section.tables:
            lines += [f"### {table.title}", "", *_markdown_table(table), ""]
            lines += [table.note, ""] if table.note else []
        lines += [*(f"- {item}" for item in section.items), ""] if section.items else []
    return "\n".join(lines).rstrip() + "\n"


def render_text(table: Table) -> str:
    """The table for a terminal: aligned columns, no ornament."""
    cells = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    rule = tuple("-" * width for width in widths)

    def line(row: Row) -> str:
        parts = (
            cell.ljust(width) if i in table.text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(parts).rstrip()

    return "\n".join(line(row) for row in (table.columns, rule, *table.rows))


def _markdown_table(table: Table) -> list[str]:
    rule = "|".join(":--" if i in table.text_columns else "--:" for i in range(len(table.columns)))
    return [_markdown_row(table.columns), f"|{rule}|", *(_markdown_row(row) for row in table.rows)]


def _markdown_row(row: Row) -> str:
    return "| " + " | ".join(re.sub(r"([|*\[\]<])", r"\\\1", cell) for cell in row) + " |"
