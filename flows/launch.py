"""Starts a flow from the command line, its parameters as options, its outcome as an exit code.

Prefect takes a second to import. In the module that runs as a command, `launch` therefore makes the flow only after options were
read and checked, and flows import what needs Prefect when they run: help and mistakes are there at once.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.command import command_parser, run_command, whole_number, whole_numbers

if TYPE_CHECKING:
    from components.config.schema import Study


class Command(NamedTuple):
    """A flow to be, in the module that runs as a command: its function, and the settings of `prefect.flow`."""

    function: Callable[..., None]
    settings: Mapping[str, Any]


def study_flow(**settings: Any) -> Callable[[Callable[..., None]], Any]:
    """Prefect's `flow`, for a function whose parameters are also the options of its module as a command, and there a `Command`.

    Args:
        settings: of `prefect.flow`.
    """

    def decorate(function: Callable[..., None]) -> Any:
        if function.__module__ == "__main__":
            return Command(function, settings)
        from prefect import flow

        return flow(**settings)(function)

    return decorate


def launch(command: Command, rule: Callable[[Study, str], object] | None = None) -> None:
    """Runs the flow with the command line's options and exits: 0, 1 when stages failed, 2 for a user's mistake.

    Args:
        rule: what it asks of its `arm` (`check_parameters`).
    """
    options = options_of(command.function)
    run_command(lambda: _run(command, options, rule))


def _run(command: Command, options: dict[str, Any], rule: Callable[[Study, str], object] | None) -> None:
    from components.config.loader import load_study
    from flows.parameters import check_parameters

    params = check_parameters(**options, rule=rule)  # a mistake is said now, not after the start of Prefect
    from prefect import flow

    from flows.remains import watch_this_process
    from tasks.stage import StageFailedError

    watch_this_process(load_study(params).runtime.stop_seconds)
    try:
        flow(**command.settings)(command.function)(**options)
    except StageFailedError as error:
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(1)


def options_of(function: Callable[..., None]) -> dict[str, Any]:
    """The options given; one for each parameter of a flow's function, a list as comma-separated words.

    Help comes from its docstring, examples from the commands that its module's docstring has.
    """
    module, doc = function.__globals__["__spec__"].name, function.__globals__["__doc__"]
    does, _, parameters = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    meanings = dict(re.findall(r"^ +(\w+): (.+)", parameters, flags=re.MULTILINE))
    parser = command_parser(module, does, "\n".join(re.findall(rf"`(python -m {module}\b[^`]*)`", doc)))
    for name, parameter in inspect.signature(function).parameters.items():
        parse = PARSERS.get(str(parameter.annotation).partition(" ")[0], str)
        required = parameter.default is inspect.Parameter.empty
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=parse, required=required, default=argparse.SUPPRESS, help=meanings.get(name))
    return vars(parser.parse_args())


def words(text: str) -> list[str]:
    """`a,b`"""
    return [word for word in text.split(",") if word]


PARSERS: dict[str, Callable[[str], Any]] = {"list[str]": words, "list[int]": whole_numbers, "int": whole_number}
