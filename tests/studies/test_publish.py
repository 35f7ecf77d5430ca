"""For a paper: LaTeX tables, figures in one and two columns, the style files, and two results side by side."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import mathtext, style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import tiebreak
from command import call
from tiebreak.methods import METHODS
from tiebreak.studies import Comparison, Experiment, load, run
from tiebreak.studies.charts import COLOURS, Axis, Chart, Mark, Series
from tiebreak.studies.difference import difference
from tiebreak.studies.figures import draw_chart
from tiebreak.studies.folder import checksum
from tiebreak.studies.latex import as_latex, in_latex
from tiebreak.studies.publish import publish
from tiebreak.studies.repeat import repeated_command
from tiebreak.studies.tables import Table, fitted, widths
from tiebreak.studies.training_log import findings_of

#: The names of methods of one's own are anybody's guess.
ODD = "ν_5 % & {co}: ~ #1 \\\\ $x^2"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    run(Experiment(methods=["sdbgd", "vr_pr_sdbpg"], runs=3, budget=20_000), folder)
    return folder


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two problems, and many methods, so that tables and legends are long."""
    folder = tmp_path_factory.mktemp("compared")
    methods = ["all", METHODS["sdbgd"].replace(name=ODD)]
    asked = Comparison(
        ["paper", "valley", "stiff"], methods, budgets=[1000], runs=2, trials=1
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda *words, **options: None)
        run(asked, folder, engine="here")
    return folder


@pytest.fixture(scope="module")
def written(planned, tmp_path_factory):
    """All that is published of a plan."""
    return publish(planned, tmp_path_factory.mktemp("paper"))


@pytest.fixture(scope="module")
def many(compared, tmp_path_factory):
    """All that is published of the comparison."""
    return publish(compared, tmp_path_factory.mktemp("papers"))


def test_what_was_written_is_counted(tmp_path):
    """A log has one table: "1 tables" is no English."""
    (tmp_path / "run.csv").write_text(
        "step,skipped,seconds,upper_loss\n0,0,0.1,1\n1,0,0.2,0.5\n"
    )
    done = call("publish", tmp_path / "run.csv")
    written = [path.name for path in (tmp_path / "paper").iterdir()]
    assert sum(name.startswith("table-") for name in written) == 1
    assert (
        f": 1 table, {sum(name.endswith('.pdf') for name in written)} figures, references.bib"
        in done.stderr
    )


# --- LaTeX ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1.4e-2", r"$1.4 \times 10^{-2}$"),
        ("−2e22", r"$-2 \times 10^{22}$"),
        ("min ‖∇f+λ∇g‖²", r"min $\|\nabla f+\lambda\nabla g\|^{2}$"),
        ("E‖d‖² ≤", r"E$\|d\|^{2}$ $\leq$"),
        ("at x_N, x_{N_K}", r"at $x_{N}$, $x_{N_{K}}$"),
        ("10⁴ calls", "$10^{4}$ calls"),
        ("ε⁻²·⁵", r"$\varepsilon^{-2.5}$"),
        ("calls ε^−3/ς", r"calls $\varepsilon^{-3/\varsigma}$"),
        ("PR-SDBPG†", r"PR-SDBPG$^{\dagger}$"),
        ("lower_batch & 5 %", r"lower\_batch \& 5 \%"),
        ("a–b “c”", "a--b ``c''"),
        ("37,950", "37,950"),
        ("\\{}~^", r"\textbackslash{}\{\}\textasciitilde{}\textasciicircum{}"),
    ],
)
def test_our_symbols_are_mathematics(text, said):
    assert in_latex(text) == said


def parses(text):
    """All that is between dollars is mathematics that matplotlib's parser takes, and all else is ASCII."""
    reader = mathtext.MathTextParser("path")
    pieces = re.split(r"(?<!\\)\$", text)
    assert len(pieces) % 2 == 1, text
    for piece in pieces[1::2]:
        reader.parse(f"${piece}$")
    assert "".join(pieces).isascii(), text


def test_a_number_below_zero_has_a_minus():
    """A hyphen is too short for one; in names it stays a hyphen."""
    assert in_latex("-0.006 / 0.34, valley-2, 3-4") == "$-0.006$ / 0.34, valley-2, 3-4"


def test_bibtex_knows_every_entry_and_prints_the_version(many):
    said = next(path for path in many if path.name == "references.bib").read_text(
        encoding="utf-8"
    )
    assert set(re.findall(r"@(\w+)\{", said)) <= {"misc", "article", "manual"}
    assert f"{{Version {tiebreak.__version__}}}" in said


def test_every_table_of_a_result_is_a_table_of_latex(many):
    folder = many[0].parent
    tables = [path for path in many if path.name.startswith("table-")]
    assert len(tables) >= 4
    for path in tables:
        text = path.read_text(encoding="utf-8")
        parses(text)
        for word in (r"\toprule", r"\midrule", r"\bottomrule"):
            assert text.count(word) == 1
        columns = re.sub(
            r"\{.*?\}", "", re.search(r"\{@\{\}(.*)@\{\}\}", text)[1]
        )  # p{22em} is one
        body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
        rows = re.findall(r"^ *(.*) \\\\$", body, re.MULTILINE)
        assert all(len(re.split(r"(?<!\\)&", row)) == len(columns) for row in rows)
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(
            r"\}"
        )
    main = (folder / "main.tex").read_text(encoding="utf-8")
    parses(re.sub(r"^%.*\n", "", main, flags=re.MULTILINE))
    for path in many:
        if path.name not in ("main.tex", "references.bib"):
            assert path.stem in main
    assert "% Repeat it: tiebreak compare --problems paper,valley,stiff" in main
    assert (folder / "references.bib").read_text(encoding="utf-8").count("@") == 2


def test_columns_of_words_go_to_the_left():
    sheet = Table("T", ("a", "b", "c"), [["x", "1", "word"]], words=["c"])
    assert "{@{}lrl@{}}" in as_latex(sheet, "tab:t")
    assert r"\midrule" not in as_latex(Table("T", ("", ""), [["a", "b"]]), "tab:t")


def test_what_no_page_has_room_for_is_turned_or_cut():
    """Every cell is there once, beside the name of its row and under that of its column."""
    many = [f"method number {i}" for i in range(20)]
    rows = [[f"problem {i}", *(f"{i}.{j}e-3" for j in range(20))] for i in range(3)]
    (turned,) = fitted(Table("T", ("problem", *many), rows), 120)
    assert list(turned.header) == ["", "problem 0", "problem 1", "problem 2"]
    assert list(turned.rows[7]) == ["method number 7", "0.7e-3", "1.7e-3", "2.7e-3"]
    square = Table(
        "T",
        ("problem", *many),
        [[f"p{i}", *(f"{i}.{j}e-3" for j in range(20))] for i in range(20)],
    )
    parts = fitted(square, 120)
    assert max(sum(widths(part)) for part in parts) <= 120
    assert [part.title for part in parts] == [
        f"T ({i} of {len(parts)})" for i in range(1, len(parts) + 1)
    ]
    cells = {
        frozenset((row[0], name, cell))
        for part in parts
        for row in part.rows
        for name, cell in zip(part.header[1:], row[1:], strict=True)
    }
    assert cells == {
        frozenset((f"p{i}", f"method number {j}", f"{i}.{j}e-3"))
        for i in range(20)
        for j in range(20)
    }
    assert fitted(Table("T", ("a", "b"), [["c", "d"]]), 120) == [
        Table("T", ["a", "b"], [["c", "d"]])
    ]


@pytest.mark.skipif(
    shutil.which("pdflatex") is None,
    reason="no LaTeX here (pdflatex): what is published is not compiled",
)
@pytest.mark.parametrize("which", ["written", "many", "log"])
def test_latex_compiles_all_of_it(which, request, tmp_path):
    """Without an error, and with nothing that is wider than its column."""
    if which == "log":
        place = tmp_path / "run_5%.csv"
        place.write_text(
            "step,skipped,excess,noise,lower_loss,seconds\n0,0,1.5,0.1,1,0.1\n1,0,0.5,0.1,0.5,0.2\n"
        )
        publish(place, tmp_path / "paper")
    else:
        shutil.copytree(request.getfixturevalue(which)[0].parent, tmp_path / "paper")
    folder = tmp_path / "paper"
    for _ in range(2):
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout, done.stdout
    assert "Float too large" not in done.stdout, done.stdout
    assert (folder / "main.pdf").read_bytes().startswith(b"%PDF")


# --- figures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("page", 6.75)])
def test_figures_are_as_wide_as_they_say_and_letters_stay_letters(width, inches, many):
    mine = [path for path in many if path.stem.endswith(width)]
    assert len(mine) == 4
    for path in mine[:2]:
        content = path.read_bytes()
        assert content.startswith(b"%PDF-")
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", content)
        assert float(box[1]) / 72 == pytest.approx(inches, abs=0.01)


def test_a_figure_shows_what_the_chart_has():
    columns = {
        "x": [1, 10, 100],
        "y": [1.0, 0.1, 0.01],
        "y:low": [0.5, 0.05, 0.005],
        "y:high": [2, 0.2, 0.02],
    }
    points = {"x": [10], "y": [0.5], "y:error": [0.1]}
    chart = Chart(
        "T", "", [Axis("x", "calls", "log")], [Axis("y", "‖∇g‖²", "log")],
        [Series("a", columns, 0), Series("b", points, 1, "markers"), Series("c", {"x": [1], "z": [1]}, 2)],
        [Mark("y", 0.3, "limit")],
    )  # fmt: skip
    made = draw_chart(chart, chart.x[0], chart.y, "column")
    (axes,) = made.axes
    drawn = {tuple(line.get_ydata()): line for line in axes.lines}
    assert tuple(columns["y"]) in drawn
    assert drawn[tuple(columns["y"])].get_color() == COLOURS[0]
    assert (0.5,) in drawn
    assert len(axes.collections) >= 1  # the band
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["a", "b"]
    assert axes.get_ylabel() == r"$\|\nabla g\|^{2}$"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_of_runs_that_all_failed_there_is_an_empty_figure(value, tmp_path):
    """A logarithm has no scale where nothing is positive; what else the paper holds is not lost for it."""
    axes = [Axis("x", "calls", "log")], [Axis("y", "‖∇g‖²", "log")]
    chart = Chart(
        "T", "", *axes, [Series("a", {"x": [10.0], "y": [value]}, 0, "lines+markers")]
    )
    made = draw_chart(chart, chart.x[0], chart.y, "column")
    made.savefig(tmp_path / "made.pdf")
    assert made.axes[0].get_xscale() == "log"


@pytest.mark.usefixtures("no_figures")
def test_every_problem_of_a_comparison_has_its_figure(compared, many, tmp_path):
    """Of the first residual; of all residuals, if one problem is named."""
    names = {path.name for path in many if path.name.startswith("figure-2-")}
    problems = ["paper", "valley-2", "stiff-2"]
    assert names == {
        f"figure-2-{p}-residual-{width}.pdf"
        for p in problems
        for width in ("column", "page")
    }
    call("publish", compared, "--problem", "valley-2", "--output", tmp_path / "one")
    names = {path.name for path in (tmp_path / "one").glob("figure-2-*-page.pdf")}
    measures = [
        "residual",
        "stationarity-squared",
        "lower-gradient-squared",
        "direction-squared",
    ]
    assert names == {f"figure-2-valley-2-{name}-page.pdf" for name in measures}
    with pytest.raises(
        ValueError, match=r"problem='gorge' must be one of paper, valley-2, stiff-2"
    ):
        publish(compared, tmp_path / "none", problem="gorge")
    assert not (tmp_path / "none").exists()


def test_a_problem_cannot_be_chosen_where_there_is_one(results, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"problem='paper' must be left out: this result has a single problem",
    ):
        publish(results, tmp_path, problem="paper")


@pytest.mark.parametrize("width", ["column", "page"])
def test_long_legends_and_labels_leave_room(width, compared):
    """All words are on the figure, and the axes are at least an inch high."""
    for chart in load(compared).charts.values():
        made = draw_chart(chart, chart.x[0], chart.y[:1], width)
        canvas = FigureCanvasAgg(made)
        canvas.draw()
        (axes,), (legend,) = made.axes, made.legends
        for thing in (legend, axes.xaxis.label, axes.yaxis.label):
            box = thing.get_window_extent(canvas.get_renderer())
            assert made.bbox.x0 <= box.x0 <= box.x1 <= made.bbox.x1
            assert made.bbox.y0 <= box.y0 <= box.y1 <= made.bbox.y1
        assert axes.get_window_extent(canvas.get_renderer()).height >= made.dpi


@pytest.mark.parametrize("width", ["column", "page"])
def test_the_style_files_are_for_everybody(width):
    with style.context(["tiebreak.styles.base", f"tiebreak.styles.{width}"]):
        assert (
            matplotlib.rcParams["figure.figsize"][0]
            == {"column": 3.25, "page": 6.75}[width]
        )
        assert matplotlib.rcParams["pdf.fonttype"] == 42
        cycle = [
            entry["color"].lower().removeprefix("#")
            for entry in matplotlib.rcParams["axes.prop_cycle"]
        ]
    assert cycle == [colour.lower().removeprefix("#") for colour in COLOURS]


# --- two results ----------------------------------------------------------------------------------------------------


def test_the_same_command_gives_the_same_bits(results, tmp_path):
    """Dates and seconds are never the same twice, and are left aside."""
    run(Experiment(methods=["sdbgd", "vr_pr_sdbpg"], runs=3, budget=20_000), tmp_path)
    found = difference(results, tmp_path)
    assert (found.settings, found.changes, found.largest) == ([], [], 0.0)
    done = call("diff", results, tmp_path)
    assert "The same, bit for bit." in done.stdout + done.stderr


def changed(results, tmp_path, change):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    lines = (tmp_path / "points.csv").read_text(encoding="utf-8").splitlines()
    place = lines[0].split(",").index("upper_value")
    cells = lines[2].split(",")
    cells[place] = repr(change(float(cells[place])))
    lines[2] = ",".join(cells)
    (tmp_path / "points.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_one_bit_is_noticed_and_called_rounding(results, tmp_path):
    changed(results, tmp_path, lambda value: np.nextafter(value, 9.0).item())
    found = difference(results, tmp_path)
    ((file, column, count, cells, size),) = found.changes
    assert (file, column, count, cells) == ("points.csv", "upper_value", 1, 12)
    assert 0 < size < 1e-15
    assert "up to rounding" in found.verdict
    call("diff", results, tmp_path, code=1)
    call("diff", results, tmp_path, "--tolerance", "1e-12")


def test_a_changed_file_is_a_difference(results, tmp_path):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "findings.json"
    path.write_text(path.read_text(encoding="utf-8") + " ", encoding="utf-8")
    done = call("diff", results, tmp_path, code=1)
    assert "findings.json" in done.stdout + done.stderr
    assert "files have changed since they were written" in done.stderr
    assert "The same" not in done.stderr


@pytest.mark.parametrize("name", ["points.csv", "curves.parquet"])
@pytest.mark.parametrize("command", ["report", "publish"])
def test_a_flipped_bit_of_the_data_is_refused(results, tmp_path, name, command):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    done = call(command, tmp_path, code=2)
    text = " ".join(done.stderr.split())
    assert f"{name}' is not as the command wrote it" in text
    assert "run the command again, with --overwrite" in text


def test_another_seed_is_told_with_its_numbers(results, tmp_path):
    run(
        Experiment(methods=["sdbgd", "vr_pr_sdbpg"], runs=3, budget=20_000, seed=1),
        tmp_path,
    )
    found = difference(results, tmp_path)
    assert ("experiment, seed", "0", "1") in found.settings
    assert found.verdict.startswith("Different, by up to")
    done = call("diff", results, tmp_path, "--tolerance", "1e-6", code=1)
    assert "lower_gradient_squared" in done.stdout + done.stderr


def test_rows_columns_words_and_files_that_differ(results, tmp_path):
    run(Experiment(methods=["sdbgd"], runs=3, budget=20_000), tmp_path / "fewer")
    assert "rows: " in difference(results, tmp_path / "fewer").changes[0][1]
    changed(results, tmp_path / "nan", lambda value: np.nan)
    assert difference(results, tmp_path / "nan").largest == np.inf
    gone = tmp_path / "gone"
    shutil.copytree(results, gone)
    (gone / "points.csv").unlink()
    assert difference(results, gone).changes[-1][:2] == (
        "points.csv",
        "(not in the second)",
    )
    other = tmp_path / "words"
    shutil.copytree(results, other)
    text = (other / "points.csv").read_text(encoding="utf-8")
    (other / "points.csv").write_text(
        text.replace("budget", "steps", 1), encoding="utf-8"
    )
    assert [row[1] for row in difference(results, other).changes] == ["status"]


def test_like_is_compared_with_like(results, tmp_path):
    log = tmp_path / "run.csv"
    log.write_text("step,skipped,excess\n0,0,1.5\n1,0,0.5\n")
    with pytest.raises(
        ValueError, match=r"is of `reproduce`.*of `log`: compare like with like"
    ):
        difference(results, log)
    other = tmp_path / "other.csv"
    other.write_text("step,skipped,excess\n0,0,1.5\n1,0,0.25\n")
    assert difference(log, log).largest == 0
    assert difference(log, other).changes == [("", "excess", 1, 2, 0.5)]
    call("diff", results, results, "--tolerance", "2", code=2)
    saved = json.loads((results / "config.json").read_text(encoding="utf-8"))
    assert saved["versions"]
    assert findings_of(results).verdict.good


def test_a_result_is_repeated_by_its_own_record(planned, tmp_path, monkeypatch):
    said = call("repeat", planned, "--output", tmp_path / "b").stderr
    assert "tiebreak plan --budget 20000" in said
    assert "The same, bit for bit." in said
    assert (planned / "measured.csv").read_bytes() == (
        tmp_path / "b" / "measured.csv"
    ).read_bytes()
    assert (
        "must not exist yet"
        in call("repeat", planned, "--output", tmp_path / "b", code=2).stderr
    )

    def copied(words, **options):
        assert words[-1] == "--quiet"
        shutil.copytree(planned, tmp_path / "c")
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", copied)
    done = call("repeat", planned, "--output", tmp_path / "c", "--quiet")
    assert done.stderr == "The same, bit for bit.\n"


OWN = """
import tiebreak

method = tiebreak.methods.sdbgd.replace(name="mine", step_size=0.1)


def problem():
    return tiebreak.problems.paper()
"""


@pytest.mark.parametrize(
    ("absolute", "words"),
    [
        (
            False,
            "compare --as-is --budgets 1000 --runs 2 --problems OWN:problem --methods sdbgd,OWN:method",
        ),
        (True, "verify --steps 20 --runs 4 --problem OWN:problem --method OWN:method"),
    ],
    ids=["compare", "verify"],
)
@pytest.mark.usefixtures("no_figures")
def test_a_result_of_own_files_is_repeated_anywhere(
    absolute, words, tmp_path, monkeypatch
):
    """With the file as it was, or with the copy in the result; the latter runs code that came along, so it is asked."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    file = tmp_path / "first" / "there" / "mine.py"
    file.parent.mkdir()
    file.write_text(OWN)
    call(
        *words.replace("OWN", str(file) if absolute else "there/mine.py").split(),
        "--output",
        "a",
        "--quiet",
    )
    Path("a/own/mine-00000000.py").write_text("mine")
    call(
        *words.replace("OWN", str(file) if absolute else "there/mine.py").split(),
        "--output",
        "a",
        "--quiet",
    )
    (copy,) = Path("a/own").glob("*/mine.py")
    assert copy.read_text() == OWN
    # A file that no command wrote stays.
    assert Path("a/own/mine-00000000.py").read_text() == "mine"
    assert "The same, bit for bit." in call("repeat", "a", "--output", "b").stderr
    result = tmp_path / "first" / "a"
    file.write_text(OWN.replace("0.1", "0.2"))
    assert (
        "mine.py', which has changed since"
        in call("repeat", result, "--output", "c", code=2).stderr
    )
    file.unlink()
    monkeypatch.chdir(tmp_path / "second")
    said = call("repeat", result, "--output", "c", code=2).stderr
    assert "mine.py', which is not here" in said
    assert "say --own to run that" in said
    assert not Path("c").exists()
    assert (
        "The same, bit for bit."
        in call("repeat", result, "--own", "--output", "c").stderr
    )
    copy = tmp_path / "first" / copy
    copy.write_text(copy.read_text() + "print('something else')")
    assert (
        "must have 'mine.py' in 'mine-"
        in call("repeat", result, "--own", "--output", "d", code=2).stderr
    )


EVIL = """
import tiebreak

sdbgd = tiebreak.methods.sdbgd
a = sdbgd.replace(name="[/nope] :x: | c")
b = sdbgd.replace(name="‖\\\\input{/etc/passwd}‖")
c = sdbgd.replace(name="$\\\\frac{$")
d = sdbgd.replace(name="red\\x1b[31m\\nline <b>&")
"""


def test_names_are_text_in_every_output(tmp_path, monkeypatch):
    """Markup of rich, Markdown, LaTeX, HTML, mathematics of matplotlib, and sequences of a terminal."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(EVIL, encoding="utf-8")
    methods = ",".join(f"evil.py:{name}" for name in "abcd")
    words = ["compare", "--problems", "paper,valley-4", "--methods", methods]
    done = call(*words, "--quick", "--report", "--output", "out")
    assert "[/nope] :x: | c" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    summary = Path("out/summary.md").read_text(encoding="utf-8")
    assert "[/nope] :x: \\| c |" in summary
    assert "line &lt;b>&" in summary
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;" in page
    call("publish", "out")
    for path in Path("out/paper").glob("*.tex"):
        text = path.read_text(encoding="utf-8")
        assert "\\input{/etc" not in text
        assert "\\frac" not in text
        assert "\x1b" not in text
        parses(re.sub(r"^%.*\n", "", text, flags=re.MULTILINE))


def test_what_a_command_would_run_is_checked_and_not_what_a_record_lists(
    results, tmp_path, monkeypatch
):
    """The record lists no file, or the file in its own folder, or names a module; `plan` runs files as well."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("raise RuntimeError", encoding="utf-8")
    for command, message in (
        ("reproduce --methods mine.py:m", "which its record does not list"),
        ("reproduce --methods=sdbgd,mine.py:m", "which its record does not list"),
        ("reproduce --problem package.mine:m", "would import the module"),
    ):
        folder = tmp_path / "copy"
        shutil.copytree(results, folder, dirs_exist_ok=True)
        saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        saved |= {"command": f"tiebreak {command}", "sources": {}}
        (folder / "config.json").write_text(json.dumps(saved), encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            repeated_command(folder)


def test_there_may_be_no_own_files(results, tmp_path):
    assert (
        "was made without files"
        in call("repeat", results, "--own", "--output", tmp_path / "b", code=2).stderr
    )


@pytest.mark.parametrize("sources", [["mine.py"], {"mine.py": 3}])
def test_checksums_that_are_none(sources, results, tmp_path):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(
        json.dumps(saved | {"sources": sources}), encoding="utf-8"
    )
    with pytest.raises(
        ValueError, match="must have a record with checksums in 'sources', not"
    ):
        repeated_command(tmp_path)


@pytest.mark.parametrize(
    "command", [None, "rm -r .", "tiebreak verify --runs 4", "tiebreak"]
)
def test_whatever_else_a_record_says_is_not_run(command, results, tmp_path):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(
        json.dumps(saved | {"command": command}), encoding="utf-8"
    )
    with pytest.raises(
        ValueError, match="must have a record with the command of `tiebreak reproduce`"
    ):
        repeated_command(tmp_path)


@pytest.mark.parametrize("sources", [{}, {"place": "checksum"}])
def test_code_that_came_with_a_result_is_not_run_by_itself(sources, results, tmp_path):
    """Not even where the record names it, with or without its checksum."""
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    code = tmp_path / "own" / "mine.py"
    code.parent.mkdir()
    code.write_text("raise RuntimeError")
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    saved |= {"command": f"tiebreak reproduce --methods sdbgd,{code}:method"}
    saved["sources"] = {str(code): checksum(code.read_bytes()) for _ in sources}
    (tmp_path / "config.json").write_text(json.dumps(saved), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"mine.py' in it: look at it, and say --own to run it"
    ):
        repeated_command(tmp_path)


def test_a_repeated_command_imports_nothing_from_where_it_is(
    results, tmp_path, monkeypatch
):
    shutil.copytree(results, tmp_path / "result")
    (tmp_path / "result" / "numpy.py").write_text(
        "raise RuntimeError('numpy of somebody else')"
    )
    monkeypatch.chdir(tmp_path / "result")
    assert (
        "The same, bit for bit."
        in call("repeat", ".", "--output", tmp_path / "again").stderr
    )
