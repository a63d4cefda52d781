"""What pydantic finds wrong with a section of the parameter file, said as `Problem`s: key, value, rule, remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from components.config.problems import Problem

ModelT = TypeVar("ModelT", bound=BaseModel)


def validate(schema: type[ModelT], raw: object, at: str, problems: list[Problem]) -> ModelT | None:
    """The section of that schema; None, with `problems` extended, when something is wrong with it."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        problems += [_problem(detail, schema, at) for detail in error.errors(include_url=False)]
        return None


def _problem(detail: Any, schema: type[BaseModel], at: str) -> Problem:
    location = [str(part) for part in detail["loc"]]
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "rule":
        location.append(context["key"])
        return Problem(_key(at, location), context["value"], context["rule"], context["remedy"])
    key = _key(at, location)
    if kind == "extra_forbidden":
        return Problem(key, None, "unknown key", suggest(location[-1], _siblings(schema, location)) or "remove it")
    if kind == "missing":
        return Problem(key, None, "missing key", "add it; scales/quick.yaml has every key with its meaning")
    message = str(detail["msg"])
    rule = message.removeprefix("Input ").removeprefix("Value ").removeprefix("value ")
    shown = value if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return Problem(key, shown, rule, _remedy(kind))


def _key(at: str, location: list[str]) -> str:
    # pydantic puts the tag of a discriminated union (`data.source.files.paths`) and `[key]` into the path; the file has neither.
    tags = {"sotu", "files", "fineweb-edu", "hub", "bpe", "file", "linear", "llama3", "[key]"}
    parts = [
        part
        for i, part in enumerate(location)
        if not (part in tags and (part == "[key]" or location[i - 1 : i] in (["source"], ["tokenizer"], ["rope_scaling"])))
    ]
    return ".".join(part for part in [at, *parts] if part)


def _siblings(schema: type[BaseModel], location: list[str]) -> list[str]:
    """Names that would have been right where an unknown key stands."""
    names: list[str] = []
    level: list[type[BaseModel]] = [schema]
    for part in location[:-1]:
        level = [inner for outer in level for inner in _inner_models(outer, part)] or level
    for model in level:
        names += model.model_fields
    return names


def _inner_models(model: type[BaseModel], field: str) -> list[type[BaseModel]]:
    from typing import get_args

    info = model.model_fields.get(field)
    if info is None:
        return []
    found, queue = [], [info.annotation]
    while queue:
        annotation = queue.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.append(annotation)
        queue += get_args(annotation)
    return found


def suggest(word: str, names: Iterable[str]) -> str:
    """A remedy for a name that may be misspelt; empty when none of the names is like it."""
    close = difflib.get_close_matches(word, list(names), n=1)
    return f"did you mean {close[0]}?" if close else ""


def _remedy(kind: str) -> str:
    if kind.endswith(("_type", "_parsing")):
        return "write the value in that form"
    return "choose a value that satisfies it"
