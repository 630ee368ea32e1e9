"""A statement as a PDF: A4, in the reader's language and direction, the head of the table on every page.

Arabic is shaped by HarfBuzz and set from right to left, columns included. Cells that hold only Latin letters and digits, which are nearly all,
go unshaped: shaping thousands of figures would take most of the time.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.utils.translation import get_language_bidi
from django.utils.translation import gettext as _
from fpdf import FPDF
from fpdf.enums import Align, MethodReturnValue, WrapMode, XPos, YPos

from billing.documents.model import Document, Row
from gpunex.kit import show

FONTS = Path(__file__).parent / "fonts"
FAMILY = "document"
MARGIN, BOTTOM = 14.0, 18.0  # mm
LINE, SMALL_LINE = 4.4, 3.7  # heights of a line of text, mm
INK, QUIET, RULE, SHADE = (24, 27, 31), (92, 99, 108), (206, 210, 215), (243, 244, 246)
# Widths in mm, in the order of Document.columns; "What" takes what is left.
DAY, TIME, PRICE, FIGURE = 20.0, 18.0, 21.0, 25.0


@dataclass(frozen=True)
class Cell:
    """Text in one column. ``end`` aligns figures at the far side of their column."""

    text: str
    end: bool = False
    strong: bool = False


def render(document: Document, *, verify_url: str = "") -> bytes:
    """The whole document. ``verify_url`` is where anyone can check the payout it belongs to."""
    return _Sheet(document, verify_url=verify_url).draw()


class _Sheet(FPDF):
    def __init__(self, document: Document, *, verify_url: str) -> None:
        super().__init__(format="A4", unit="mm")
        self.document, self.verify_url = document, verify_url
        self.rtl = get_language_bidi()
        self.set_margins(MARGIN, MARGIN, MARGIN)
        self.set_auto_page_break(False)
        self.add_font(FAMILY, "", FONTS / "document-regular.ttf")
        self.add_font(FAMILY, "B", FONTS / "document-semibold.ttf")
        self.c_margin = 0.8
        self.alias_nb_pages("")  # pages are counted by hand: an alias could not be shaped
        self.set_title(f"{document.number} {document.title}")
        self.set_author("GPUnex")
        self.set_creation_date(document.issued_at)
        self.widths = self._widths()
        self._measured: dict[tuple[str, float, bool], float] = {}
        self._counted: dict[tuple[str, float, float, bool], int] = {}

    def _widths(self) -> list[float]:
        figures = [FIGURE] * (3 if self.document.earning else 2)
        rest = self.epw - DAY - TIME - PRICE - sum(figures)
        return [DAY, rest, TIME, PRICE, *figures]

    def draw(self) -> bytes:
        self.add_page()
        self._head()
        self._table_head()
        for row in self.document.rows:
            self._row(row)
        if not self.document.rows:
            self._line([Cell(""), Cell(_("Nothing moved in this period."))])
        self._sums()
        self._notes()
        self._number_pages()
        return bytes(self.output())

    # Parts

    def _head(self) -> None:
        self._write("GPUnex", size=10, strong=True, color=QUIET, height=6)
        self._write(self.document.title, size=17, strong=True, height=9)
        self.ln(1.5)
        for label, value in self.document.facts:
            self._pair(label, value)
        self.ln(4)

    def _pair(self, label: str, value: str) -> None:
        """A fact: its label in a narrow column, its value beside it."""
        top = self.y
        self._at(0, 30, label, size=8.5, color=QUIET)
        self.y = top
        used = self._at(30, self.epw - 30, value, size=8.5)
        self.y = top + max(LINE, used)

    def _table_head(self) -> None:
        self.set_fill_color(*SHADE)
        fit = zip(self.document.columns, self.widths, strict=True)
        height = max(self._lines(title, width, size=7.5, strong=True) for title, width in fit) * SMALL_LINE + 2
        self.rect(MARGIN, self.y, self.epw, height, style="F")
        top, offset = self.y + 1, 0.0
        for number, (title, width) in enumerate(zip(self.document.columns, self.widths, strict=True)):
            self.y = top
            self._at(offset, width, title, size=7.5, strong=True, end=number > 1, height=SMALL_LINE)
            offset += width
        self.y = top + height - 0.2

    def _row(self, row: Row) -> None:
        fine = {"fine": True}
        figures = [row.gross_micro] if self.document.earning else []
        cells = [
            Cell(show.day_text(row.day)),
            Cell(row.title + (f" ({_('late')})" if row.late else "")),
            Cell("" if row.seconds is None else show.clock(row.seconds), end=True),
            Cell("" if row.rate_micro is None else show.price(row.rate_micro), end=True),
            *[Cell("" if micro is None else show.usdc(micro, **fine), end=True) for micro in [*figures, row.fee_micro]],
            Cell(show.usdc(row.amount_micro, **fine), end=True, strong=True),
        ]
        self._line(cells, under=[text for text in (row.detail, row.note) if text])

    def _line(self, cells: list[Cell], *, under: list[str] | None = None) -> None:
        """One row of the table on one page; ``under`` stands below the second cell, smaller."""
        extra = [(text, self._lines(text, self.widths[1], size=7)) for text in under or []]
        title = self._lines(cells[1].text, self.widths[1], size=8)
        height = title * LINE + sum(lines for _text, lines in extra) * SMALL_LINE + 1.6
        if self.y + height > self.h - BOTTOM:
            self.add_page()
            self._table_head()
        top, offset = self.y + 0.8, 0.0
        for cell, width in zip(cells, self.widths, strict=False):
            self.y = top
            self._at(offset, width, cell.text, size=8, strong=cell.strong, end=cell.end)
            offset += width
        self.y = top + title * LINE
        for text, lines in extra:
            below = self.y + lines * SMALL_LINE
            self._at(self.widths[0], self.widths[1], text, size=7, color=QUIET, height=SMALL_LINE)
            self.y = below
        self.y = top + height - 0.8
        self.set_draw_color(*RULE)
        self.set_line_width(0.1)
        self.line(MARGIN, self.y, MARGIN + self.epw, self.y)

    def _sums(self) -> None:
        label, amount = 62.0, 30.0
        wide = self.epw - label - amount
        sums = [
            (figure, self._lines(figure.label, label, size=8.5, strong=figure.strong) * LINE + 0.8)
            for figure in self.document.sums
        ]
        if self.y + 4 + sum(height for _figure, height in sums) > self.h - BOTTOM:
            self.add_page()
        self.ln(4)
        for figure, height in sums:
            top, strong = self.y, figure.strong
            self._at(wide, label, figure.label, size=8.5, strong=strong, color=INK if strong else QUIET)
            self.y = top
            self._at(wide + label, amount, show.usdc(figure.micro, fine=True), size=8.5, strong=strong, end=True)
            self.y = top + height
        self.ln(3)

    def _notes(self) -> None:
        notes = list(self.document.notes)
        if self.verify_url:
            notes.append(_("Anyone can check this payout against the ledger and the chain at the address below."))
        needed = sum(self._lines(note, self.epw, size=7.5) for note in notes) * SMALL_LINE + 16
        if self.y + needed > self.h - BOTTOM:
            self.add_page()
        for note in notes:
            self._at(0, self.epw, note, size=7.5, color=QUIET, height=SMALL_LINE)
            self.ln(0.6)
        self.ln(1.5)
        for label, value in [("SHA-256", self.document.sha256), (_("Check"), self.verify_url)]:
            if value:
                self._pair(label, value)

    def _number_pages(self) -> None:
        last = self.pages_count
        for number in range(1, last + 1):
            self.page = number
            self.y = self.h - BOTTOM + 6
            text = _("%(number)s, page %(page)s of %(pages)s") % {
                "number": self.document.number,
                "page": number,
                "pages": last,
            }
            self._at(0, self.epw, text, size=7.5, color=QUIET)
        self.page = last

    # Text

    def _write(self, text: str, *, size: float, height: float, strong: bool = False, color: Any = INK) -> None:
        self._at(0, self.epw, text, size=size, strong=strong, color=color, height=height)

    def _at(
        self,
        offset: float,
        width: float,
        text: str,
        *,
        size: float,
        strong: bool = False,
        end: bool = False,
        color: tuple[int, int, int] = INK,
        height: float = LINE,
    ) -> float:
        """Text in a column that begins ``offset`` mm from where lines begin. Returns the height used; the next line is below it."""
        if not text:
            return 0.0
        self._style(text, size=size, strong=strong)
        self.set_text_color(*color)
        self.x = self.w - MARGIN - offset - width if self.rtl else MARGIN + offset
        align = Align.R if self.rtl != end else Align.L
        top = self.y
        # A shaped line goes through ``multi_cell`` however short it is: ``cell`` puts the marks of Arabic beside their letters.
        if not self.text_shaping and self._fits(text, width, size=size, strong=strong):
            self.cell(width, height, text, align=align, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        else:
            self.multi_cell(
                width, height, text, align=align, new_x=XPos.LMARGIN, new_y=YPos.NEXT, wrapmode=_wrapmode(text)
            )
        return self.y - top

    def _fits(self, text: str, width: float, *, size: float, strong: bool) -> bool:
        """Whether the text, in the font that is set, stands on one line."""
        key = (text, size, strong)
        if key not in self._measured:
            self._measured[key] = self.get_string_width(text)
        return self._measured[key] <= width - 2 * self.c_margin

    def _lines(self, text: str, width: float, *, size: float, strong: bool = False) -> int:
        key = (text, width, size, strong)
        if key not in self._counted:
            self._style(text, size=size, strong=strong)
            if not self.text_shaping and self._fits(text, width, size=size, strong=strong):
                self._counted[key] = 1
            else:
                lines: Any = self.multi_cell(
                    width, LINE, text, dry_run=True, output=MethodReturnValue.LINES, wrapmode=_wrapmode(text)
                )
                self._counted[key] = max(1, len(lines))
        return self._counted[key]

    def _style(self, text: str, *, size: float, strong: bool) -> None:
        self.set_font(FAMILY, "B" if strong else "", size)
        if text.isascii() or all(letter < "\u0590" or "\u2000" <= letter < "\u3000" for letter in text):
            self.set_text_shaping(False)
        else:
            self.set_text_shaping(True, direction="rtl" if self.rtl else None)


def _wrapmode(text: str) -> WrapMode:
    """Identifiers have no place to break at."""
    return WrapMode.WORD if " " in text else WrapMode.CHAR
