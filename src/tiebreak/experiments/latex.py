"""Tables for LaTeX, with booktabs: our symbols as mathematics, powers of ten as one writes them."""

import re
from collections.abc import Collection, Sequence

from tiebreak.experiments.tables import Sheet

__all__ = ["as_latex", "in_latex"]

_SYMBOLS = {
    "‖": r"\|", "∇": r"\nabla", "λ": r"\lambda", "β": r"\beta", "ρ": r"\rho", "η": r"\eta", "μ": r"\mu", "τ": r"\tau",
    "σ": r"\sigma", "γ": r"\gamma", "α": r"\alpha", "ε": r"\varepsilon", "Δ": r"\Delta", "Σ": r"\Sigma", "±": r"\pm",
    "≤": r"\leq", "≥": r"\geq", "×": r"\times", "−": "-", "∝": r"\propto", "∞": r"\infty", "∈": r"\in", "→": r"\to",
    "·": r"\cdot", "√": r"\sqrt{}", "†": r"^{\dagger}", "∼": r"\sim", "₊": "_{+}", "d̂": r"\hat{d}",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_PLAIN = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "—": "---", "…": r"\ldots{}", "“": "``",
    "”": "''", "’": "'", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip

_NUMBER = r"[-−]?\d[\d.]*e[-+]?\d+"
#: What is mathematics: a norm, an index of x, a number with an exponent, a power, a symbol.
_SINGLE = "".join(key for key in _SYMBOLS if len(key) == 1)
_MATH = re.compile(rf"‖[^‖]+‖²?|x_\{{?\w+(?:_\w+)?\}}?|{_NUMBER}|\d*[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|d̂|[{_SINGLE}]+")


def in_latex(text: str, escape: bool = True) -> str:
    r"""A text of our tables for LaTeX; not to `escape` what is no mathematics is for matplotlib's labels.

    >>> print(in_latex("‖∇g‖² 1.4e-2 ± 3e-4, 50 %"))
    $\|\nabla g\|^{2}$ $1.4 \times 10^{-2}$ $\pm$ $3 \times 10^{-4}$, 50 \%
    """
    found, place = [], 0
    for match in _MATH.finditer(text):
        found += [text[place : match.start()], f"${_math(match[0])}$"]
        place = match.end()
    found.append(text[place:])
    return "".join(part if i % 2 or not escape else _plain(part) for i, part in enumerate(found))


def _math(text: str) -> str:
    if re.fullmatch(_NUMBER, text):
        digits, power = text.replace("−", "-").split("e")
        return rf"{digits} \times 10^{{{int(power)}}}"
    if index := re.fullmatch(r"x_\{?(\w+?)(?:_(\w+))?\}?", text):
        return f"x_{{{index[1]}}}" if index[2] is None else f"x_{{{index[1]}_{{{index[2]}}}}}"
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda power: f"^{{{power[0].translate(_SUPERSCRIPTS)}}}", text)
    for symbol, command in _SYMBOLS.items():
        # A command that ends in a letter needs a space before another letter.
        text = re.sub(rf"{symbol}(?=[A-Za-z])", lambda _, c=command: f"{c} " if c[-1].isalpha() else c, text)  # type: ignore[misc]  # a default binds it
        text = text.replace(symbol, command)
    return text


def _plain(text: str) -> str:
    return "".join(_PLAIN.get(letter, letter) for letter in text)


def as_latex(sheet: Sheet, prose: Collection[str] = (), label: str = "") -> str:
    r"""A table environment; the first column and those of `prose` to the left, the others to the right.

    >>> print(as_latex(Sheet("Ends", ("method", "‖d‖²"), [["SDBGD", "1.4e-2"]]), label="tab:ends"), end="")
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
    places = "".join("l" if i == 0 or name in prose else "r" for i, name in enumerate(sheet.header))
    head = [f"    {_row(sheet.header)}", r"    \midrule"] if any(sheet.header) else []
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{in_latex(sheet.title)}}}",
        *([rf"  \label{{{label}}}"] if label else []),
        rf"  \begin{{tabular}}{{@{{}}{places}@{{}}}}",
        r"    \toprule",
        *head,
        *(f"    {_row(row)}" for row in sheet.rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(in_latex, cells)) + r" \\"
