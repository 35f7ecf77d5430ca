"""Tables for LaTeX, with booktabs: our symbols as mathematics, powers of ten as one writes them."""

import re
from collections.abc import Mapping, Sequence

from tiebreak.studies.tables import Table, fitted, widths

# How many letters fit side by side; a page may be a little too small, and then has smaller letters.
_COLUMN = 46
_PAGE = 130
_LONG = 44  # letters from which on a cell of words is set in several lines

_SYMBOLS = {
    "‖": r"\|", "∇": r"\nabla", "λ": r"\lambda", "β": r"\beta", "ρ": r"\rho", "η": r"\eta", "μ": r"\mu", "τ": r"\tau",
    "σ": r"\sigma", "γ": r"\gamma", "α": r"\alpha", "ε": r"\varepsilon", "Δ": r"\Delta", "Σ": r"\Sigma", "±": r"\pm",
    "δ": r"\delta", "ζ": r"\zeta", "θ": r"\theta", "κ": r"\kappa", "ν": r"\nu", "ξ": r"\xi", "π": r"\pi",
    "φ": r"\varphi", "χ": r"\chi", "ψ": r"\psi", "ω": r"\omega", "Φ": r"\Phi", "Ω": r"\Omega", "ℓ": r"\ell",
    "½": r"\tfrac{1}{2}", "ς": r"\varsigma",
    "≤": r"\leq", "≥": r"\geq", "×": r"\times", "−": "-", "∝": r"\propto", "∞": r"\infty", "∈": r"\in", "→": r"\to",
    "·": r"\cdot", "√": r"\sqrt{}", "†": r"^{\dagger}", "∼": r"\sim", "₊": "_{+}", "d̂": r"\hat{d}",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻·", "0123456789-.")
_PLAIN = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "—": "---", "…": r"\ldots{}", "“": "``",
    "”": "''", "’": "'", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip

_NUMBER = r"[-−]?\d[\d.]*e[-+]?\d+"
_NEGATIVE = r"(?<![\w.])[-−]\d[\d.]*"  # a hyphen would be too short for a minus
#: What is mathematics: a norm, a symbol to a power, an index of x, a number with an exponent or below 0, a symbol.
_SINGLE = "".join(key for key in _SYMBOLS if len(key) == 1)
_POWER = rf"[{_SINGLE}](?:\^[−\d/{_SINGLE}]+|[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+(?:·[⁰¹²³⁴⁵⁶⁷⁸⁹]+)?)"
_MATH = re.compile(
    rf"‖[^‖\\{{}}$&#%~^_<>|\s][^‖\\{{}}$&#%~^<>|]*‖²?|{_POWER}|x_\{{?\w+(?:_\w+)?\}}?|{_NUMBER}|{_NEGATIVE}|\d*[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|d̂|[{_SINGLE}]+"
)


def in_latex(text: str) -> str:
    r"""A text for LaTeX, on one line: symbols and powers as mathematics, all other letters escaped.

    >>> print(in_latex("‖∇g‖² 1.4e-2 ± 3e-4, 50 %"))
    $\|\nabla g\|^{2}$ $1.4 \times 10^{-2}$ $\pm$ $3 \times 10^{-4}$, 50 \%
    """
    return _converted(text, _PLAIN)


def for_matplotlib(text: str) -> str:
    """A text for a label of matplotlib, which sets mathematics and leaves other letters as they are."""
    return _converted(text, {"$": r"\$"})


def _converted(text: str, letters: Mapping[str, str]) -> str:
    text = "".join(filter(str.isprintable, " ".join(text.split())))
    parts = []
    place = 0
    for match in _MATH.finditer(text):
        parts += [
            _escaped(text[place : match.start()], letters),
            f"${_math(match[0])}$",
        ]
        place = match.end()
    return "".join([*parts, _escaped(text[place:], letters)])


def _escaped(text: str, letters: Mapping[str, str]) -> str:
    return "".join(letters.get(letter, letter) for letter in text)


def _math(text: str) -> str:
    if re.fullmatch(_NUMBER, text):
        digits, power = text.replace("−", "-").split("e")
        return rf"{digits} \times 10^{{{int(power)}}}"
    if re.fullmatch(_POWER, text):
        power = text[1:].removeprefix("^").translate(_SUPERSCRIPTS)
        return f"{_SYMBOLS[text[0]]}^{{{_math(power)}}}"
    if index := re.fullmatch(r"x_\{?(\w+?)(?:_(\w+))?\}?", text):
        if index[2] is None:
            return f"x_{{{index[1]}}}"
        return f"x_{{{index[1]}_{{{index[2]}}}}}"
    text = re.sub(
        r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+",
        lambda power: f"^{{{power[0].translate(_SUPERSCRIPTS)}}}",
        text,
    )
    for symbol, command in _SYMBOLS.items():
        # A command that ends in a letter needs a space before another letter.
        text = re.sub(
            rf"{symbol}(?=[A-Za-z])",
            lambda _, c=command: f"{c} " if c[-1].isalpha() else c,  # type: ignore[misc]  # a default binds it
            text,
        )
        text = text.replace(symbol, command)
    return text


def parts(table: Table) -> list[Table]:
    """The table in parts that a page has room for."""
    return fitted(table, _PAGE, _width)


def _width(cell: str) -> int:
    exponents = len(re.findall(_NUMBER, cell))  # 1e-2 is printed as 1 × 10⁻²
    return min(_LONG, len(cell) + 3 * exponents)


def as_latex(table: Table, label: str) -> str:
    r"""A table environment with booktabs.

    A table that is too wide for a column of the page goes over both, and is scaled down if these are too narrow as well
    (:func:`parts` cuts a table instead).

    >>> print(as_latex(Table("Ends", ("method", "‖d‖²"), [["SDBGD", "1.4e-2"]]), "tab:ends"), end="")
    \begin{table}
      \centering
      \caption{Ends}
      \label{tab:ends}
      \begin{tabular}{@{}lr@{}}
        \toprule
        method & $\|d\|^{2}$ \\
        \midrule
        SDBGD & $1.4 \times 10^{-2}$ \\
        \bottomrule
      \end{tabular}
    \end{table}
    """
    columns = zip(table.header, *table.rows, strict=True)
    places = "".join(_place(i, each, table.words) for i, each in enumerate(columns))
    wide = sum(widths(table, _width)) > _COLUMN
    star = "*" * wide
    shrink = r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    lines = [
        rf"\begin{{table{star}}}",
        r"  \centering",
        rf"  \caption{{{in_latex(table.title)}}}",
        rf"  \label{{{label}}}",
        *[shrink] * wide,
        rf"  \begin{{tabular}}{{@{{}}{places}@{{}}}}",
        r"    \toprule",
    ]
    if any(table.header):
        lines += [f"    {_row(table.header)}", r"    \midrule"]
    lines += [f"    {_row(row)}" for row in table.rows]
    end = r"  \end{tabular}" + "}" * wide
    return "\n".join([*lines, r"    \bottomrule", end, rf"\end{{table{star}}}", ""])


def _place(i: int, column: Sequence[str], words: Sequence[str]) -> str:
    if i > 0 and column[0] not in words:
        return "r"
    if max(map(len, column)) <= _LONG:
        return "l"
    return rf"p{{{_LONG / 2:g}em}}"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(in_latex, cells)) + r" \\"
