"""Small finished results that several test files read; none of them may be changed."""

from pathlib import Path

import pytest

from command import call


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `tiebreak reproduce`; beside it, shown.txt and said.txt have both outputs."""
    return _made(tmp_path_factory, "reproduce --budget 2e4 --runs 3 --seed 7")


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of `tiebreak plan`."""
    return _made(
        tmp_path_factory,
        "plan --run --budget 2e4 --objective practice --runs 5 --seed 3",
    )


@pytest.fixture(scope="session")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of `tiebreak verify`, with fewer steps and problems than --quick has."""
    from tiebreak.studies.verification import verification

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            verification, "_QUICK", verification.Sizes(60, 100, 30, (2,), 1, 50)
        )
        return _made(tmp_path_factory, "verify --quick --runs 4 --seed 2")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are not drawn, which takes longer than all other work of a small command."""
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda *words, **options: None
    )


def _made(tmp_path_factory: pytest.TempPathFactory, words: str) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "new" / "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tiebreak.studies.sweeps._PATIENCE", float("inf")
        )  # no other processes
        done = call(*words.split(), "--output", folder)
    folder.with_name("shown.txt").write_text(done.stdout, encoding="utf-8")
    folder.with_name("said.txt").write_text(done.stderr, encoding="utf-8")
    return folder
