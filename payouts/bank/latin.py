"""Names as every bank takes them: the Latin set of the European Payments Council, which ASCII files keep to as well.

Letters of other alphabets are transliterated, what has no Latin form is left out. ``unidecode`` alone leaves ``&``, ``<`` and ``>``.

>>> latin("Müller & Söhne <GmbH>", most=70)
'Muller + Sohne GmbH'
>>> latin("محمد علي", most=70)
'mHmd ly'
>>> latin("🦊", most=70)
''
>>> latin("//Nord/", most=70)
'Nord'
"""

import re
import unicodedata

from text_unidecode import unidecode

_ALLOWED = re.compile(r"[^A-Za-z0-9/\-?:().,'+ ]")
_SLASHES = re.compile(r"/{2,}")
_BEFORE = str.maketrans({"Ə": "A", "ə": "a"})  # unidecode takes them for signs of phonetics
_INSTEAD = str.maketrans({"&": "+", "_": "-", '"': "'", "[": "(", "]": ")", "{": "(", "}": ")"})


def latin(text: str, *, most: int) -> str:
    """``text`` in at most ``most`` characters of the set; empty if nothing of it can be written."""
    # Composed first: unidecode knows "ü", and drops the two points of "u" + "¨".
    plain = unidecode(unicodedata.normalize("NFC", text).translate(_BEFORE)).translate(_INSTEAD)
    plain = _SLASHES.sub("/", " ".join(_ALLOWED.sub("", plain).split()))
    # Neither end may be a slash, and a cut must not leave one.
    return plain.strip("/ ")[:most].strip("/ ")
