"""The boundary of every command: one clean message for a user's mistake, exit codes, progress with ETA."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from components.config.problems import StudyError, disk_trouble
from tasks.phases import COMMAND, phase, recorded_phases

EXIT_MACHINE = 1  # a machine failed, or there is a bug; a retry may help
EXIT_MISTAKE = 2  # the user's input is wrong; a retry cannot help
EXIT_INTERRUPTED = 130  # stopped by Ctrl-C or SIGTERM; running it again goes on where it was
STATUS_FILE = "STUDY_STATUS_FILE"  # environment: where the command leaves its exit code and times, which DVC does not pass on


class MachineError(RuntimeError):
    """A machine failed, not the user; what was saved is kept, and trying again may help."""


def run_command(main: Callable[[], None]) -> NoReturn:
    """Runs a command and exits: 0; 2 with one message for a `StudyError`, 1 for a `MachineError`, 130 when interrupted; else the
    traceback.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with phase(COMMAND), disk_trouble():
            main()
            sys.stdout.flush()
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        _leave_status(EXIT_MISTAKE, str(error))
        sys.exit(EXIT_MISTAKE)
    except MachineError as error:
        print(f"error: {error}", file=sys.stderr)
        _leave_status(EXIT_MACHINE, str(error))
        sys.exit(EXIT_MACHINE)
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        sys.exit(EXIT_MACHINE)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on where it stopped", file=sys.stderr)
        _leave_status(EXIT_INTERRUPTED, "interrupted")
        sys.exit(EXIT_INTERRUPTED)
    _leave_status(0, "")
    sys.exit(0)


def command_parser(module: str, doc: str | None, examples: str) -> argparse.ArgumentParser:
    """The parser of `python -m MODULE`; its `--help` has the module's docstring, the options, then examples, one a line."""
    epilog = "examples:\n" + "".join(f"  {line}\n" for line in examples.strip().splitlines())
    return argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_path(parser: argparse.ArgumentParser, flag: str, default: str, meaning: str) -> None:
    """An option for a file or folder, whose help ends with the default."""
    parser.add_argument(flag, type=Path, default=Path(default), help=f"{meaning} (default: %(default)s)")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of cells, the header the first of them: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        print("  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]))


def whole_number(text: str) -> int:
    """The value of an option that counts something: at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1 (got {text!r})")
    return int(text)


def whole_numbers(text: str) -> list[int]:
    """The value of an option that lists them: `4,8,16`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between them (got {text!r})")
    return [int(word) for word in words]


def positive_number(text: str) -> float:
    """The value of an option that measures something: more than 0, and finite."""
    with contextlib.suppress(ValueError):
        if 0.0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number of more than 0 (got {text!r})")


def progress_bar(total: int | None, description: str, unit: str) -> Any:
    """A tqdm bar on stderr: redrawn on a terminal, one line every ten seconds in a log."""
    from tqdm import tqdm

    live = sys.stderr.isatty()
    return tqdm(total=total, desc=description, unit=unit, unit_scale=True, mininterval=0.2 if live else 10.0, dynamic_ncols=live)


def _reader_is_gone() -> bool:
    """Whether nobody reads what the command prints any more, as after `| head`; further output goes nowhere then."""
    stdout = sys.stdout.fileno()
    ready = select.poll()
    ready.register(stdout, 0)
    if not any(events & (select.POLLERR | select.POLLHUP) for _, events in ready.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _leave_status(code: int, message: str) -> None:
    path = os.environ.get(STATUS_FILE)
    if path:
        Path(path).write_text(json.dumps({"code": code, "message": message, "phases": recorded_phases()}), encoding="utf-8")
