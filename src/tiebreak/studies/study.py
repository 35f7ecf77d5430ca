"""The protocol of a study, and one function that runs any study: sweep, collect, save."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from tiebreak.files import FilePath
from tiebreak.studies.engines import Engine
from tiebreak.studies.findings import Findings
from tiebreak.studies.folder import BLOCKS, check_folder, save
from tiebreak.studies.store import Store
from tiebreak.studies.sweeps import Blocks, Hear, SweepResult, sweep
from tiebreak.studies.tables import counted
from tiebreak.studies.task import Task


class Study(Protocol):
    """A question, the work that answers it, and the answer.

    Attributes
    ----------
    command : str
        The command line that repeats the study.
    partial : bool, optional
        Whether `collect` accepts the blocks of an interrupted sweep, and says in the findings what is missing. A study
        without this attribute does not: :func:`run` raises KeyboardInterrupt after Ctrl-C.

    Examples
    --------
    >>> from tiebreak.studies import Experiment
    >>> study: Study = Experiment(methods=["sdbgd"], runs=2, budget=1000)
    >>> [task.name for task in study.tasks({})]
    ['sdbgd, runs 0 to 1']
    """

    @property
    def command(self) -> str:
        """The command line that repeats the study."""
        ...

    def tasks(self, blocks: Blocks) -> Iterable[Task]:
        """The tasks that can be named when these blocks are finished; called until there are no new tasks."""
        ...

    def collect(self, result: SweepResult) -> Findings:
        """The findings of the blocks.

        Only a study with ``partial = True`` is given the blocks of an interrupted sweep. It raises KeyboardInterrupt
        if these blocks leave nothing to find.
        """
        ...


def run(
    study: Study,
    folder: FilePath | None = None,
    *,
    engine: Engine = None,
    store: Store | FilePath | None = None,
    progress: Hear | None = None,
    overwrite: bool = False,
    before_saving: Callable[[Findings], Any] = lambda findings: None,
) -> Findings:
    """Do the tasks of a study, collect its findings and, if a folder is given, save them.

    Parameters
    ----------
    study : Study
    folder : path, optional
        Finished blocks are kept in ``.blocks`` of the folder until all files are written.
    engine, store, progress :
        As :func:`sweep` takes them; the store is that of the folder, if one is given.
    overwrite : bool
        Whether files in the folder are replaced that another command or program wrote.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, unless the study has ``partial = True``. Finished blocks stay in the folder or in the store.

    Examples
    --------
    >>> from tiebreak.studies import Experiment
    >>> from tiebreak.studies.tables import select
    >>> findings = run(Experiment(methods=["sdbgd"], runs=2, budget=1000))
    >>> select(findings.data["points"], iterate="last")["steps"]
    array([9, 9])
    """
    if folder is None:
        result = sweep(study.tasks, engine=engine, store=store, progress=progress)
        return _collected(study, result, store)
    check_folder(folder, study.command, overwrite)
    with Store(Path(folder) / BLOCKS, study.command) as blocks:
        result = sweep(study.tasks, engine=engine, store=blocks, progress=progress)
        findings = _collected(study, result, blocks)
        before_saving(findings)
        save(findings, folder, overwrite)
        if not result.interrupted:
            blocks.clear()
    return findings


def _collected(
    study: Study, result: SweepResult, store: Store | FilePath | None
) -> Findings:
    """The findings of the blocks; KeyboardInterrupt if the study does not accept those of an interrupted sweep."""
    if result.interrupted and not getattr(study, "partial", False):
        finished = f"{counted(len(result.blocks), 'block')} finished"
        if store is None:
            raise KeyboardInterrupt(f"{finished}, and not kept: there is no folder")
        raise KeyboardInterrupt(
            f"{finished} and kept; the same command goes on from there"
        )
    findings = study.collect(result)
    if not isinstance(findings, Findings):
        raise TypeError(
            f"{type(study).__qualname__}.collect must return Findings, not {type(findings).__name__}"
        )
    return findings
