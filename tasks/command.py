"""The boundary of every command: one clean message for a user's mistake, exit codes, progress with ETA."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from components.config.problems import StudyError

EXIT_MISTAKE = 2  # the user's input is wrong; a retry cannot help
EXIT_INTERRUPTED = 130  # stopped by Ctrl-C or SIGTERM; running it again goes on where it was


def run_command(main: Callable[[], None]) -> NoReturn:
    """Runs a command and exits: 0, 2 with one message for a `StudyError`, 130 when interrupted; other errors keep their traceback."""
    try:
        main()
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_MISTAKE)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on where it stopped", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def progress_bar(total: int | None, description: str, unit: str) -> Any:
    """A tqdm bar on stderr: redrawn on a terminal, one line every ten seconds in a log."""
    from tqdm import tqdm

    live = sys.stderr.isatty()
    return tqdm(total=total, desc=description, unit=unit, unit_scale=True, mininterval=0.2 if live else 10.0, dynamic_ncols=live)
