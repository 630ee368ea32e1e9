"""Tables as CSV files, for spreadsheets: streamed, UTF-8 with a mark that Excel needs, and no cell that runs as a formula.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@``, also behind white space and in full-width letters. Such a text
gets an apostrophe in front, which shows it as text. A plain number keeps its sign: it computes nothing but itself.

>>> cell("=HYPERLINK(1)"), cell("-4.25"), cell("-1+2"), cell(None)
("'=HYPERLINK(1)", '-4.25', "'-1+2", '')
>>> b"".join(csv_lines(["day", "USDC"], [["2026-10-14", "-0.347000"], ["@sum", "1.00"]])).decode("utf-8-sig").splitlines()
['day,USDC', '2026-10-14,-0.347000', "'@sum,1.00"]
"""

import csv
import re
import unicodedata
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

from gpunex.kit.time import iso_z

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_BEGINS_FORMULA = ("=", "+", "-", "@")
_MARK = b"\xef\xbb\xbf"  # without it Excel reads Arabic as Latin letters
ROWS_A_PIECE = 200


class _Echo:
    """What ``csv.writer`` writes to: hands each line back."""

    def write(self, line: str) -> str:
        return line


def cell(value: object) -> str:
    """One cell as text: a moment as ISO 8601 in UTC, nothing as an empty cell, a text never as a formula. Floats are refused."""
    if value is None:
        return ""
    if isinstance(value, float):
        raise TypeError("a figure of a sheet is an int or an exact decimal text, never a float")
    if isinstance(value, datetime):
        return iso_z(value) or ""
    text = str(value).replace("\x00", "")
    if _NUMBER.fullmatch(text):
        return text
    # What a spreadsheet may drop before it looks: white space, control and format characters.
    seen = "".join(
        letter
        for letter in unicodedata.normalize("NFKC", text)
        if not letter.isspace() and unicodedata.category(letter) not in ("Cc", "Cf")
    )
    return f"'{text}" if seen.startswith(_BEGINS_FORMULA) or text.startswith(("\t", "\r", "\n")) else text


def csv_lines(header: Sequence[object], rows: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """The file piece by piece; ``rows`` is read as it is written."""
    writer = csv.writer(_Echo())
    piece = [_MARK.decode(), writer.writerow([cell(title) for title in header])]
    for number, row in enumerate(rows, start=1):
        piece.append(writer.writerow([cell(value) for value in row]))
        if number % ROWS_A_PIECE == 0:
            yield "".join(piece).encode()
            piece = []
    if piece:
        yield "".join(piece).encode()


class _Download(StreamingHttpResponse):
    """Streams under ASGI too, where Django would first collect all pieces of an ordinary iterator."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces: Iterator[Any] = iter(self.streaming_content)  # type: ignore[arg-type]  # made from an ordinary iterator
        following = sync_to_async(lambda: next(pieces, None))
        while (piece := await following()) is not None:
            yield piece


def rows_as_csv(header: Sequence[object], rows: Iterable[Sequence[object]], filename: str) -> StreamingHttpResponse:
    """A download. ``filename`` is ASCII, of our own making; amounts are decimal texts (``money.as_decimal_string``)."""
    response = _Download(csv_lines(header, rows), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{filename}"'
    response["Cache-Control"] = "private, no-store"
    return response
