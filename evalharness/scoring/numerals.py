"""Numbers as people and models write them: LaTeX, currencies, thousands, other scripts' digits."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction

MAX_DIGITS = 40  # no answer is longer, and arithmetic on a megabyte of digits would not end

_MINUS = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63"
_CHARACTERS = (
    {ord(c): "-" for c in _MINUS}
    | {ord(c): "/" for c in "\u2044\u2215"}
    | {ord(c): "=" for c in "\u2245\u2248\u2261\u21d2\u2192"}
    | {ord(c): "," for c in "\u066c"}
    | {ord(c): "." for c in "\u066b\u3002"}
    | {ord(c): "$" for c in "\u00a2\u00a3\u00a5\u20ac\u20b9"}
    | {ord(c): "" for c in "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00b0\u00ba\u2032"}
)
_THIN_THOUSANDS = re.compile("(?<=\\d)[\u00a0\u2007\u2009\u202f'\u2019](?=\\d{3}(?!\\d))")

_WRAPPERS = (
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|math(?:bf|rm|it|sf|tt|bb|cal)|mbox|hbox|operatorname|emph|underline"
    r"|bm|boldsymbol|boxed|fbox)\b\*?\s*\{([^{}]*)\}"
)
_LATEX: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=\d)(?:\{,\}|\\[,!;: ]|~|\\thinspace\b)+(?=\d{3}(?!\d))", ""),
        (r"\{,\}", ","),
        (r"\^\s*\{?\s*\\(?:circ|degree|prime)\b\s*\}?|\\(?:degree|circ)\b", ""),
        (r"\\?\(\s*\\?mod(?:ulo)?\b[^()]{0,20}\)|\\[pb]mod\s*(?:\{[^{}]*\}|\d)|\\?\bmod(?:ulo)?\s*\d{1,9}", " "),
        (r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2 "),
        (r"\\[dtc]?frac\s*(\d)\s*(\d)", r" \1/\2 "),
        (r"(^|[=($\s{])-\s+(?=\d+/\d)", r"\1-"),
        (_WRAPPERS, r" \1 "),
        (_WRAPPERS, r" \1 "),
        (r"\\[hv]?phantom\s*\{[^{}]*\}", ""),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|rm|bf|it|sf|tt|[lL]arge|small)\b", ""),
        (r"\\(?:approx|simeq|cong|equiv|implies|iff|to|[lL]?[rR]ightarrow)\b", "="),
        (r"\\(?:[lcv]?dots|q?quad|space|thinspace|newline)\b|\\[\[\](),!;: \\]|~", " "),
        (r"([A-Za-z])\s*\^\s*(?:\{[^{}]*\}|-?\d)", r"\1"),
        (r"_\{[^{}]*\}|(?<=\d)_\d|(?<!\w)_+(?=[-$\d])|(?<=[\d.])_+(?!\w)", ""),
        (r"\\?[{}]", " "),
        (r"\\?[$%]|`|(?<!\d)\*+|\*+(?!\d)", ""),
        (r"\.{2,}", " "),
    )
)

_SIGN = r"(?:(?<![\w)\]}])-)?"  # in "10-3" and "x - 3" the stroke is an operator
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d++)"
NUMBER = re.compile(
    rf"(?<![\w.^]){_SIGN}(?:{_DIGITS}(?:\.\d++)?|\.\d++)(?:[eE][+-]?\d{{1,2}}(?!\w))?"
    rf"(?:\s?/\s?{_DIGITS}(?![\w.]))?(?!\d|(?:st|nd|rd|th)\b)",
    re.ASCII,  # a letter of another script in front does not make a number a name: "x2" is one, "答案是70" is not
)
_IS_NUMBER = re.compile(
    rf"\b(?:is|are|was|be|equals)\s+(?:(?:thus|therefore|then|exactly|about|only|now)\s+)?({NUMBER.pattern})", re.ASCII
)
_SPACED = re.compile(r"-?\d{1,3}(?: \d{3})+")  # 12 345, where nothing else is said
_LIST_NUMBER = re.compile(r"^\s*(?:\d+[.)]\s+(?=\S)|[-+>#]+\s+)")
_SCRIPTS = re.compile(r"(?<=[A-Za-z0-9)\]}])[_^](?:\{[^{}]*\}|\w)")
_NOT_A_VALUE = re.compile(r"[\\^+\u00b7\u00d7\u00f7\u221a\u03c0\u221e\u2211\u220f]|(?<=[\d\s])[*/x](?=\s*\d)")


def plain(text: str) -> str:
    """`text` in ASCII as far as numbers go: digits of any script, minus signs, currencies, thin thousands."""
    odd = {ord(c): _character(c) for c in set(text) if ord(c) > 127}
    return _THIN_THOUSANDS.sub("", text).translate(odd) if odd or "'" in text else text


def _character(char: str) -> str:
    if ord(char) in _CHARACTERS:
        return _CHARACTERS[ord(char)]
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if 0xFF01 <= ord(char) <= 0xFF5E:  # fullwidth forms of ASCII
        return chr(ord(char) - 0xFEE0)
    return " " if char.isspace() else char


def without_latex(fragment: str) -> str:
    """A short fragment without LaTeX and Markdown dress; what is left of LaTeX afterwards is mathematics."""
    for pattern, replacement in _LATEX:
        fragment = pattern.sub(replacement, fragment)
    return fragment


def canonical(token: str) -> str | None:
    """One written number as the shortest decimal, or as a fraction: `070` -> `70`, `29.00` -> `29`, `2/4` -> `1/2`.

    None for a division by zero and for more than MAX_DIGITS characters.
    """
    bare = re.sub(r"[,\s]", "", token)
    if len(bare) > MAX_DIGITS:
        return None
    above, slash, below = bare.partition("/")
    if slash:
        return str(Fraction(above) / Fraction(below)) if Fraction(below) else None
    value = format(Decimal(above), "f")
    if "." in value:
        value = value.rstrip("0").rstrip(".")
    return str(int(value)) if "." not in value else value


def same_number(one: str | None, other: str | None) -> bool:
    """Whether two canonical numbers are the same value; nothing equals no answer."""
    return one is not None and other is not None and Fraction(one) == Fraction(other)


def only_value(fragment: str) -> str | None:
    """The one number that `fragment` states (`x = 70`, `29 dollars`), or None where it states none or several,
    or an expression still to be worked out."""
    value = without_latex(fragment).rsplit("=", 1)[-1].strip().lstrip("+").rstrip(".")
    value = re.sub(r"^-\s+(?=[\d.])", "-", value)
    if _SPACED.fullmatch(value):
        return canonical(value)
    if _NOT_A_VALUE.search(NUMBER.sub("", value)):
        return None
    found = NUMBER.findall(value)
    return canonical(found[0]) if len(found) == 1 else None


def last_value(sentence: str) -> str | None:
    """The number a sentence comes to: the first after its last `=`, else the last right behind "is", "are" or
    "equals" ("the remainder is 70 when divided by 1000"), else the last of all."""
    text = without_latex(_SCRIPTS.sub("", _LIST_NUMBER.sub("", sentence)))
    before, equals, after = text.rpartition("=")
    numbers = NUMBER.findall(after)
    if equals and numbers:
        return canonical(numbers[0])
    told = _IS_NUMBER.findall(text) or numbers or NUMBER.findall(before)
    return canonical(told[-1]) if told else None
