"""The first SIGTERM or Ctrl-C lets training end its step and save; a second one, or `runtime.stop_seconds`, ends it at once.

Whichever it is, the command ends as interrupted and the next run goes on, bit for bit: from that very step or from the newest
checkpoint.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from components.training.interruption import STOP, StoppedError


@contextlib.contextmanager
def gentle_stop(run_dir: Path, patience_seconds: float) -> Iterator[None]:
    """Inside the block, which trains the run of that folder, the first signal to stop leaves the file `stop` there.

    Raises:
        KeyboardInterrupt: the run was stopped.
    """
    stop = run_dir / STOP
    run_dir.mkdir(parents=True, exist_ok=True)
    stop.unlink(missing_ok=True)

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.exists():
            raise KeyboardInterrupt
        stop.touch()
        signal.setitimer(signal.ITIMER_REAL, patience_seconds)
        print(
            f"stopping after this step, or in {patience_seconds:g} s (runtime.stop_seconds); once more to stop at once",
            file=sys.stderr,
            flush=True,
        )

    def lose_patience(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    handlers = {signal.SIGTERM: ask, signal.SIGINT: ask, signal.SIGALRM: lose_patience}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
        if stop.exists():
            raise KeyboardInterrupt
    except StoppedError as error:
        print(error, file=sys.stderr)
        raise KeyboardInterrupt from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.unlink(missing_ok=True)
