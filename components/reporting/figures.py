"""How figures look and how they leave matplotlib: SVG for the page, PNG and CSV beside it.

Colours are Okabe and Ito's, told apart by colour-blind readers, and every arm has its own marker as well, for print. The page is
light or dark: colours leave as CSS variables with the light value as fallback. Easy to get wrong: the figures are narrow on
purpose, so that their text can be read on a phone, and nothing in them depends on the clock: the same results give the same bytes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

INK, FAINT = "#1f2328", "#c9ced6"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5539")
DASHES = ("-", "--", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
WIDTH, HEIGHT = 5.0, 3.9  # inches, with a legend of four entries
_LEGEND_ROW = 0.2  # inches

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 11.0,
    "axes.labelsize": 11.0,
    "axes.titlesize": 11.0,
    "legend.fontsize": 10.0,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
}


@dataclass(frozen=True)
class Look:
    """Colour, marker and line of one arm in every figure; dotted lines are kept for depths that are not trained."""

    color: str
    marker: str
    dash: str


@dataclass(frozen=True)
class Figure:
    """One finished figure.

    Attributes:
        name: of its files.
        alt: what it shows, for a reader who cannot see it.
        svg: an <svg> element to stand in a page, colours as CSS variables.
        data: the numbers drawn, as CSV.
    """

    name: str
    title: str
    alt: str
    caption: str
    svg: str
    png: bytes
    data: str


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A colour and marker for each arm; seven colours and ten markers make seventy arms distinct."""
    return {
        name: Look(PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)], DASHES[i // len(PALETTE) % len(DASHES)])
        for i, name in enumerate(names)
    }


@contextmanager
def canvas(
    height: float = HEIGHT, legend_entries: int = 0, rows: int = 1, columns: int = 1, **grid: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes in the report's style, drawn without a display; settings of matplotlib are restored afterwards.

    A legend of more than four entries makes the figure taller instead of its axes smaller.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    height += _LEGEND_ROW * max(0, (legend_entries + 1) // 2 - 2)
    with mpl.rc_context(_STYLE):
        drawing = Drawing(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(drawing)
        yield drawing, drawing.subplots(rows, columns, **grid)


def finish(drawing: Any, name: str, title: str, alt: str, caption: str, data: str) -> Figure:
    """The figure's SVG and PNG; call it inside `canvas`."""
    svg, png = io.StringIO(), io.BytesIO()
    drawing.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawing.savefig(png, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return Figure(name, title, alt, caption, _embed(svg.getvalue(), name, alt), png.getvalue(), data)


def legend_below(drawing: Any, axes: Any, columns: int = 2) -> None:
    """The legend of the axes under the figure, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        drawing.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV text; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return text.getvalue()


def _embed(svg: str, name: str, alt: str) -> str:
    """The <svg> element with ids of its own, colours as CSS variables, and a text alternative."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for i, color in enumerate((INK, FAINT, *PALETTE)):
        variable = ("ink", "faint")[i] if i < 2 else f"series-{i - 1}"
        svg = svg.replace(f": {color}", f": var(--{variable}, {color})")
    svg = re.sub(r"<svg ([^>]*?)width=\"[^\"]*\"", r"<svg \1", svg, count=1)
    svg = re.sub(r"<svg ([^>]*?)height=\"[^\"]*\"", r"<svg \1", svg, count=1)
    label = alt.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
