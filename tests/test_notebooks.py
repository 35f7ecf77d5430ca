"""Every notebook runs from top to bottom in a fresh kernel, and what is kept of its output is small."""

import json
import os
from pathlib import Path

import pytest

import tiebreak

NOTEBOOKS = sorted(
    (Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb")
)


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "nbclient or ipykernel is not installed: pip install '.[notebook]'"
    nbclient, nbformat = (
        pytest.importorskip("nbclient", reason=why),
        pytest.importorskip("nbformat", reason=why),
    )
    for needed in ("ipykernel", "torch", "sklearn", "matplotlib"):
        pytest.importorskip(needed, reason=why)
    places = [
        str(Path(tiebreak.__file__).parent.parent),
        os.environ.get("PYTHONPATH", ""),
    ]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3"
    ).execute()  # raises where a cell does
    said = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    assert "tolerance" in said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_kept_is_small_whole_and_of_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert len(text) < 100_000
    assert [cell["execution_count"] for cell in cells] == list(
        range(1, len(cells) + 1)
    )  # in order, all of them
    assert not any(
        output["output_type"] in ("error",)
        for cell in cells
        for output in cell["outputs"]
    )
    assert not any(
        output.get("name") == "stderr" for cell in cells for output in cell["outputs"]
    )
    assert str(Path.home()) not in text


def test_there_is_a_notebook() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first-ten-minutes"]
