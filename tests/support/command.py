"""The command line, for the tests."""

import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

from tiebreak.cli import main

# A warning in the command is an error, as in every other test; the width keeps tables from being folded.
ENVIRONMENT = os.environ | {
    "PYTHONWARNINGS": "error",
    "COLUMNS": "100",
    "PYTHONUTF8": "1",
}


def call(
    *words: str | Path, code: int = 0, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command, in another process after the Python statements `before`; it must end with this code."""
    arguments = [*map(str, words)]
    done = (
        _in_another_process(arguments, before)
        if before
        else _in_this_process(arguments)
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def _in_this_process(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    code: str | int | None = 0
    with (
        mock.patch.object(sys, "argv", ["tiebreak", *arguments]),
        mock.patch.dict(os.environ, ENVIRONMENT),
        redirect_stdout(StringIO()) as shown,
        redirect_stderr(StringIO()) as said,
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert code is None or isinstance(code, int)
    return subprocess.CompletedProcess(
        arguments, code or 0, shown.getvalue(), said.getvalue()
    )


def _in_another_process(
    arguments: list[str], before: str
) -> subprocess.CompletedProcess[str]:
    start = f"{before}\nfrom tiebreak.cli import main; main()"
    command = [sys.executable, "-c", start, *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=ENVIRONMENT,
        timeout=120,
        check=False,
    )


def unread(stream: str, *words: str) -> tuple[str, int]:
    """Run the command with nobody who reads its `stream`: what it wrote to the other one, and its code."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        pipes: dict[str, int] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            stream: writing,
        }
        done = subprocess.run(
            [sys.executable, "-m", "tiebreak", *words],
            text=True,
            encoding="utf-8",
            env=ENVIRONMENT,
            timeout=120,
            **pipes,
        )
    finally:
        os.close(writing)
    return done.stdout if stream == "stderr" else done.stderr, done.returncode


def interrupt(*words: str | Path, seconds: float, after: str = "") -> tuple[str, str]:
    """Run the command, press Ctrl-C seconds after it has said `after`, and return what it wrote to both streams."""
    # A parent may ignore SIGINT, and its children would too.
    start = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from tiebreak.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", start, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=ENVIRONMENT,
    )
    try:
        assert process.stderr is not None
        heard = ""
        while after and after not in heard:
            heard = process.stderr.readline()
            assert heard, f"it ended before it said {after!r}"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        shown, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "Traceback" not in said, said
    return shown, said
