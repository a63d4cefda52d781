"""Starts a flow from the command line, its parameters as options, its outcome as an exit code."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from tasks.command import command_parser, run_command, whole_number, whole_numbers


def launch(flow: Any) -> None:
    """Runs the flow with the command line's options and exits: 0, 1 when stages failed, 2 for a user's mistake."""
    options = options_of(flow)
    run_command(lambda: _run(flow, options))


def _run(flow: Any, options: dict[str, Any]) -> None:
    from components.config.loader import load_study
    from flows.parameters import check_parameters
    from flows.remains import watch_this_process
    from tasks.stage import StageFailedError

    params = check_parameters(**options)  # a mistake is said now, not after the start of Prefect
    watch_this_process(load_study(params).runtime.stop_seconds)
    try:
        flow(**options)
    except StageFailedError as error:
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(1)


def options_of(flow: Any) -> dict[str, Any]:
    """The options given; one for each parameter of the flow, a list as comma-separated words.

    Help comes from the flow's docstring, examples from the commands that its module's docstring has.
    """
    module, doc = flow.fn.__globals__["__spec__"].name, flow.fn.__globals__["__doc__"]
    does, _, parameters = inspect.getdoc(flow.fn).partition("\n\nArgs:\n")
    meanings = dict(re.findall(r"^ +(\w+): (.+)", parameters, flags=re.MULTILINE))
    parser = command_parser(module, does, "\n".join(re.findall(rf"`(python -m {module}\b[^`]*)`", doc)))
    for name, parameter in inspect.signature(flow.fn).parameters.items():
        parse = PARSERS.get(str(parameter.annotation).partition(" ")[0], str)
        required = parameter.default is inspect.Parameter.empty
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=parse, required=required, default=argparse.SUPPRESS, help=meanings.get(name))
    return vars(parser.parse_args())


def words(text: str) -> list[str]:
    """`a,b`"""
    return [word for word in text.split(",") if word]


PARSERS: dict[str, Callable[[str], Any]] = {"list[str]": words, "list[int]": whole_numbers, "int": whole_number}
