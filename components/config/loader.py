"""Reads `params.yaml` into a `Study`, or says everything that is wrong with it at once.

One loader for the whole project. It uses ruamel.yaml, the parser DVC uses, so that DVC and the stages never disagree about a value
(`3e-4` is a number, `yes` a string, duplicate keys an error).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from components.config.expansions import ExpansionResolver
from components.config.problems import ConfigError, Problem, config_error
from components.config.runtime import runtime_problems
from components.config.schema import Arm, BackboneBlock, Model, ObjectiveSettings, RepairBlock, Study, StudyFile, Training
from components.config.validation import suggest, validate

PARAMS_FILE = Path("params.yaml")

SectionT = TypeVar("SectionT", Model, Training)


def load_study(path: Path = PARAMS_FILE) -> Study:
    """The validated study of a parameter file.

    Raises:
        ConfigError: the file is missing or is not YAML, or any value breaks its rule; the message lists every problem.
    """
    return resolve_study(read_yaml(path), path)


def resolve_study(raw: Mapping[str, Any], path: Path) -> Study:
    """The same of a file that has been read (`read_yaml`), and perhaps changed since.

    Raises:
        ConfigError: as `load_study`.
    """
    problems: list[Problem] = []
    file = validate(StudyFile, raw, "", problems)
    arms: dict[str, Arm] = {}
    # The file reports what is wrong with its shared sections; the arms are checked all the same, as far as that goes.
    model, training = validate(Model, raw.get("model"), "model", []), validate(Training, raw.get("training"), "training", [])
    for name, block in _mappings(raw.get("arms")).items():
        arm = resolve_arm(str(name), block, model, training, problems)
        if arm is not None:
            arms[arm.name] = arm
    backbones: dict[str, Arm] = {}
    others = frozenset({*_mappings(raw.get("arms")), *_mappings(raw.get("repairs"))})
    for name, backbone in file.backbones.items() if file is not None else ():
        found = _resolve_backbone(name, backbone, model, training, others, problems)
        if found is not None:
            backbones[name] = found
    repairs: dict[str, Arm] = {}
    for name, block in file.repairs.items() if file is not None else ():
        repair = _resolve_repair(name, block, arms, raw, training, problems)
        if repair is not None:
            repairs[name] = repair
    expansions: Mapping[str, Arm] = {}
    controls: Mapping[str, Arm] = {}
    if file is not None:
        taken = frozenset({*file.arms, *file.backbones, *file.repairs})
        resolver = ExpansionResolver(file, {**arms, **backbones}, taken, validate, _objective)
        expansions, controls = resolver.resolve()
        problems += resolver.problems
        models = {**arms, **backbones, **repairs, **expansions, **controls}
        problems += runtime_problems(file.runtime, models, _batch_keys(file))
    if problems or file is None:
        raise config_error(path, problems)
    return Study(
        data=file.data,
        model=file.model,
        training=file.training,
        arms=arms,
        backbones=backbones,
        repairs=repairs,
        expansions=expansions,
        controls=controls,
        evaluation=file.evaluation,
        benchmarks=file.benchmarks,
        profile=file.profile,
        runtime=file.runtime,
    )


def find_arm(study: Study, name: str) -> Arm:
    """The arm, backbone, repair, expansion or control of that name.

    Raises:
        ConfigError: there is none; the message names those there are.
    """
    if name not in study.models:
        close = suggest(name, study.models) or "choose one of these"
        raise ConfigError(f"--arm {name}: no such arm in the parameter file; there are {', '.join(study.models)}; {close}")
    return study.models[name]


def read_yaml(path: Path) -> dict[str, Any]:
    """The file as plain dicts and tuples.

    Raises:
        ConfigError: no such file, not YAML, or not a mapping.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        raw = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; run from the repository's root, or `make scale SCALE=quick`") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a parameter file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error}); save it as UTF-8") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ConfigError(
            f"{path}: not valid YAML: {place}{str(error.problem).removeprefix('but ')}; correct it there or just before"
        ) from None
    except (YAMLError, ValueError) as error:  # a ValueError: a date that is none, such as 2026-99-99
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must be a mapping of sections; start from scales/quick.yaml")
    try:
        plain: dict[str, Any] = as_tuples(raw)
    except RecursionError:
        raise ConfigError(f"{path}: an alias (`*name`) stands inside what it names; write the values out") from None
    return plain


def as_tuples(node: Any) -> Any:
    """Lists become tuples: the schema is immutable, and strict about it."""
    if isinstance(node, dict):
        return {key: as_tuples(value) for key, value in node.items()}
    if isinstance(node, list):
        return tuple(as_tuples(value) for value in node)
    return node


def resolve_arm(name: str, block: object, model: Model | None, training: Training | None, problems: list[Problem]) -> Arm | None:
    """The arm with its overrides applied and its objective typed; None, with `problems` extended, when something is wrong.

    Args:
        model, training: the shared sections that the arm's overrides apply to; None when they are themselves wrong.
    """
    at = f"arms.{name}"
    if not isinstance(block, Mapping):
        return None  # reported with the file
    arm_model = _override(model, block.get("model", {}), f"{at}.model", problems)
    arm_training = _override(training, block.get("training", {}), f"{at}.training", problems)
    objective = _objective(block.get("objective"), f"{at}.objective", problems)
    if arm_model is not None and arm_model.streams is not None:
        problems.append(Problem(f"{at}.model.streams", None, "streams come by expansion", "write an entry of `expansions`"))
        return None
    if arm_model is None or arm_training is None or objective is None:
        return None
    broken = [Problem(f"{at}.objective.{key}", value, rule, remedy) for key, value, rule, remedy in objective.problems(arm_model)]
    problems += broken
    if broken:
        return None
    return Arm(name=name, base=None, model=objective.shape(arm_model), training=arm_training, objective=objective)


def _resolve_backbone(
    name: str,
    block: BackboneBlock,
    model: Model | None,
    training: Training | None,
    taken: frozenset[str],
    problems: list[Problem],
) -> Arm | None:
    at = f"backbones.{name}"
    if name in taken:
        problems.append(Problem(at, None, "is also the name of an arm or a repair", "rename one of the two"))
        return None
    own = _override(model, block.model, f"{at}.model", problems)
    if own is None or training is None:
        return None
    if len(own.segments) > 1 or own.streams is not None:
        rule = "must be one segment, without streams: that is what a checkpoint is"
        problems.append(
            Problem(f"{at}.model.segments", len(own.segments), rule, "see `python -m tasks.import_backbone --describe`")
        )
        return None
    settings = importlib.import_module("components.objectives.pretrained").Settings(kind="pretrained", path=block.path)
    return Arm(name=name, base=None, model=own, training=training, objective=settings)


def _resolve_repair(
    name: str,
    block: RepairBlock,
    arms: Mapping[str, Arm],
    raw: Mapping[str, Any],
    training: Training | None,
    problems: list[Problem],
) -> Arm | None:
    at = f"repairs.{name}"
    known = _mappings(raw.get("arms"))
    if name in known:
        problems.append(Problem(at, None, "is also the name of an arm", "rename one of the two"))
    if block.base not in known:
        problems.append(
            Problem(
                f"{at}.base",
                block.base,
                "must be one of the arms",
                suggest(block.base, known) or f"choose from {', '.join(known)}",
            )
        )
    own_training = _override(training, block.training, f"{at}.training", problems)
    base = arms.get(block.base)
    if base is None or own_training is None or name in known:
        return None
    settings = importlib.import_module("components.objectives.repair").repair_settings(base, block.base, block.part)
    broken = [Problem(f"{at}.{key}", value, rule, remedy) for key, value, rule, remedy in settings.problems(base.model)]
    missing = sorted(set(own_training.seeds) - set(base.training.seeds))
    if missing:
        key = f"{at}.training.seeds"
        broken.append(Problem(key, missing, f"must be among the seeds of {block.base}", f"choose from {list(base.training.seeds)}"))
    problems += broken
    if broken:
        return None
    return Arm(name=name, base=block.base, model=base.model, training=own_training, objective=settings)


def objective_kinds() -> dict[str, type[ObjectiveSettings]]:
    """Every kind of objective an arm can have, and its settings: one file of components/objectives each."""
    package = importlib.import_module("components.objectives")
    modules = {name: importlib.import_module(f"{package.__name__}.{name}") for _, name, _ in pkgutil.iter_modules(package.__path__)}
    return {
        name: module.Settings for name, module in modules.items() if hasattr(module, "Settings") and module.Settings.from_scratch
    }


def _objective(raw: object, at: str, problems: list[Problem]) -> ObjectiveSettings | None:
    if not isinstance(raw, Mapping):
        return None  # reported with the file
    kinds = objective_kinds()
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        problems.append(
            Problem(
                f"{at}.kind",
                kind,
                f"must be one of {', '.join(sorted(kinds))}",
                suggest(str(kind), kinds) or "choose one of these",
            )
        )
        return None
    return validate(kinds[str(kind)], dict(raw), at, problems)


def _override(base: SectionT | None, changes: object, at: str, problems: list[Problem]) -> SectionT | None:
    if base is None or not isinstance(changes, Mapping):
        return None  # reported with the file
    unchanged = {key: getattr(base, key) for key in type(base).model_fields}
    return validate(type(base), {**unchanged, **changes}, at, problems)


def _batch_keys(file: StudyFile) -> dict[str, str]:
    """For every model of the file, the key that sets its batch size."""
    keys: dict[str, str] = dict.fromkeys(file.backbones, "training.batch_rows")
    for section in ("arms", "repairs", "expansions", "controls"):
        for name, block in getattr(file, section).items():
            if "batch_rows" in getattr(block, "training", {}):
                keys[name] = f"{section}.{name}.training.batch_rows"
            elif section in ("arms", "repairs"):
                keys[name] = "training.batch_rows"
            else:
                keys[name] = keys.get(block.base, "training.batch_rows")
    return keys


def _mappings(raw: object) -> Mapping[str, object]:
    return raw if isinstance(raw, Mapping) else {}
