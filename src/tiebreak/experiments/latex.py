"""Tables for LaTeX, with booktabs: our symbols as mathematics, powers of ten as one writes them."""

import re
from collections.abc import Collection, Sequence

from tiebreak.experiments.tables import Sheet, fitted, widths

# How many letters fit side by side; a page may be a little too small, and then has smaller letters.
_COLUMN = 46
_PAGE = 130
_LONG = 44  # letters of a cell of words, from which on it is set in several lines

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
    rf"‖[^‖]+‖²?|{_POWER}|x_\{{?\w+(?:_\w+)?\}}?|{_NUMBER}|{_NEGATIVE}|\d*[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|d̂|[{_SINGLE}]+"
)


def in_latex(text: str, escape: bool = True) -> str:
    r"""A text of our tables for LaTeX; not to `escape` what is no mathematics is for matplotlib's labels.

    >>> print(in_latex("‖∇g‖² 1.4e-2 ± 3e-4, 50 %"))
    $\|\nabla g\|^{2}$ $1.4 \times 10^{-2}$ $\pm$ $3 \times 10^{-4}$, 50 \%
    """
    found = []
    place = 0
    for match in _MATH.finditer(text):
        found += [text[place : match.start()], f"${_math(match[0])}$"]
        place = match.end()
    found.append(text[place:])
    return "".join(
        part if i % 2 or not escape else _plain(part) for i, part in enumerate(found)
    )


def _math(text: str) -> str:
    if re.fullmatch(_NUMBER, text):
        digits, power = text.replace("−", "-").split("e")
        return rf"{digits} \times 10^{{{int(power)}}}"
    if re.fullmatch(_POWER, text):
        power = text[1:].removeprefix("^").translate(_SUPERSCRIPTS)
        return f"{_SYMBOLS[text[0]]}^{{{_math(power)}}}"
    if index := re.fullmatch(r"x_\{?(\w+?)(?:_(\w+))?\}?", text):
        return (
            f"x_{{{index[1]}}}"
            if index[2] is None
            else f"x_{{{index[1]}_{{{index[2]}}}}}"
        )
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


def _plain(text: str) -> str:
    return "".join(_PLAIN.get(letter, letter) for letter in text)


def parts(sheet: Sheet) -> list[Sheet]:
    """The table in parts that a page has room for."""
    return fitted(sheet, _PAGE, _width)


def _width(cell: str) -> int:
    return min(_LONG, _letters(cell))


def _letters(cell: str) -> int:
    return len(cell) + 3 * len(re.findall(_NUMBER, cell))  # 1e-2 is printed as 1 × 10⁻²


def as_latex(sheet: Sheet, prose: Collection[str], label: str) -> str:
    r"""A table environment; the first column and those of `prose` to the left, the others to the right.

    What is too wide for one of two columns goes over both, and is scaled down where it is too wide even for these
    (:func:`parts` cuts a table instead).

    >>> print(as_latex(Sheet("Ends", ("method", "‖d‖²"), [["SDBGD", "1.4e-2"]]), (), "tab:ends"), end="")
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
    columns = zip(sheet.header, *sheet.rows, strict=True)
    places = "".join(_place(i, column, prose) for i, column in enumerate(columns))
    head = [f"    {_row(sheet.header)}", r"    \midrule"] if any(sheet.header) else []
    star = "*" if sum(widths(sheet, _width)) > _COLUMN else ""
    shrink = (
        [r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"]
        if star
        else []
    )
    lines = [
        rf"\begin{{table{star}}}",
        r"  \centering",
        rf"  \caption{{{in_latex(sheet.title)}}}",
        rf"  \label{{{label}}}",
        *shrink,
        rf"  \begin{{tabular}}{{@{{}}{places}@{{}}}}",
        r"    \toprule",
        *head,
        *(f"    {_row(row)}" for row in sheet.rows),
        r"    \bottomrule",
        r"  \end{tabular}" + "}" * len(shrink),
        rf"\end{{table{star}}}",
    ]
    return "\n".join([*lines, ""])


def _place(i: int, column: Sequence[str], prose: Collection[str]) -> str:
    if i > 0 and column[0] not in prose:
        return "r"
    return "l" if max(map(len, column)) <= _LONG else rf"p{{{_LONG / 2:g}em}}"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(in_latex, cells)) + r" \\"
