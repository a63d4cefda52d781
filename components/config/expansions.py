"""Resolves the sections `expansions` and `controls` of the parameter file into arms.

An expansion starts from an arm, a backbone or an earlier expansion, goes on with its objective unless it has its own, and reads
the batches that follow those its base has read. A control starts from the same arm or backbone, has no streams, and gets as many
tokens, or FLOPs, as the expansions it stands beside.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from components.config.problems import Problem
from components.config.schema import Arm, ControlBlock, ExpansionBlock, Model, ObjectiveSettings, StudyFile, Training
from components.config.streams import Streams
from components.config.validation import suggest

Validate = Callable[[Any, object, str, list[Problem]], Any]
TypeObjective = Callable[[object, str, list[Problem]], ObjectiveSettings | None]


class ExpansionResolver:
    """Resolves one file's expansions and controls, in their order in the file."""

    def __init__(
        self, file: StudyFile, arms: Mapping[str, Arm], taken: frozenset[str], validate: Validate, type_objective: TypeObjective
    ) -> None:
        """A resolver over the file's resolved arms and backbones.

        Args:
            arms: arms and backbones.
            taken: names of arms, backbones and repairs.
            validate: (schema, raw, key, problems) to the section, or None when it extends `problems`.
            type_objective: (raw, key, problems) to the settings of an objective, or None likewise.
        """
        self._file, self._arms, self._taken = file, arms, taken
        self._validate, self._type_objective = validate, type_objective
        self.expansions: dict[str, Arm] = {}
        self._broken: set[str] = set()  # expansions that had problems
        self.problems: list[Problem] = []

    def resolve(self) -> tuple[dict[str, Arm], dict[str, Arm]]:
        """The expansions and the controls; what is wrong with the others is in `problems`."""
        for name, expansion in self._file.expansions.items():
            if self._is_new(f"expansions.{name}", name, self._taken) and (arm := self._expansion(name, expansion)):
                self.expansions[name] = arm
            else:
                self._broken.add(name)
        taken = self._taken | set(self._file.expansions)
        controls: dict[str, Arm] = {}
        for name, control in self._file.controls.items():
            if self._is_new(f"controls.{name}", name, taken) and (arm := self._control(name, control)):
                controls[name] = arm
        return self.expansions, controls

    def _expansion(self, name: str, block: ExpansionBlock) -> Arm | None:
        at, known = f"expansions.{name}", {**self._arms, **self.expansions}
        told = {*self._file.arms, *self._file.backbones, *self._broken}
        base = self._find(f"{at}.base", block.base, known, told, "an arm, a backbone or an earlier expansion")
        if base is None:
            return None
        if block.streams is None and block.objective is None:
            self.problems.append(Problem(at, None, "changes nothing of its base", "give it streams or an objective"))
            return None
        model = base.model if block.streams is None else self._streamed(at, base, block.streams)
        training = self._training(base, block.training, at)
        inner: ObjectiveSettings | None = _kept_objective(base)
        if block.objective is not None:
            inner = self._type_objective(block.objective, f"{at}.objective", self.problems)
        if model is None or training is None or inner is None:
            return None
        broken, last = inner.problems(model), len(model.segments)
        if not broken and inner.shape(model) != model:  # an exit of a twin
            rule = f"must be the last one, {last}: all blocks of {base.name} are trained further"
            broken = [("exit", inner.model_dump()["exit"], rule, f"write {last}")]
        self.problems += [Problem(f"{at}.objective.{key}", value, rule, remedy) for key, value, rule, remedy in broken]
        return None if broken else self._arm(name, at, base, model, training, inner, block, None)

    def _streamed(self, at: str, base: Arm, changes: Mapping[str, Any]) -> Model | None:
        """The base's model with the expansion's streams; a tied head becomes its own."""
        streams = self._validate(Streams, _with_inherited(base.model.streams, changes), f"{at}.streams", self.problems)
        if streams is None:
            return None
        n_base = 1 if base.model.streams is None else base.model.streams.n_streams
        if streams.n_streams <= n_base:
            rule = f"must be more than the {n_base} of {base.name}: an expansion adds streams"
            self.problems.append(Problem(f"{at}.streams.n_streams", streams.n_streams, rule, "raise it or change base"))
            return None
        changed = {**_fields(base.model), "streams": streams, "tied_embeddings": False}
        model: Model | None = self._validate(Model, changed, at, self.problems)
        return model

    def _control(self, name: str, block: ControlBlock) -> Arm | None:
        at = f"controls.{name}"
        base = self._find(f"{at}.base", block.base, self._arms, {*self._file.arms, *self._file.backbones}, "an arm or a backbone")
        of = self._find(f"{at}.of", block.of, self.expansions, self._broken, "an expansion")
        if base is None or of is None:
            return None
        lineage = self._lineage(of)
        if lineage[0].base != base.name:
            rule = f"must be the arm that {of.name} comes from, {lineage[0].base}"
            self.problems.append(Problem(f"{at}.base", base.name, rule, f"write {lineage[0].base}"))
            return None
        steps = sum(arm.training.steps for arm in lineage)
        control = self._trained_for(steps, name, block, lineage)
        if control is None or block.equal == "tokens":
            return control
        flops = sum(self._flops_per_token(arm) * arm.training.steps for arm in lineage)
        return self._trained_for(max(1, round(flops / self._flops_per_token(control))), name, block, lineage)

    def _trained_for(self, steps: int, name: str, block: ControlBlock, lineage: list[Arm]) -> Arm | None:
        """The control's base, trained further for so many steps with the recipe of the last of the lineage."""
        at, base, of = f"controls.{name}", self._arms[block.base], lineage[-1]
        training = self._training(base, {**_fields(of.training), "steps": steps}, at)
        if training is None:
            return None
        first = self._file.expansions[lineage[0].name]  # it starts as the lineage does
        return self._arm(name, at, base, base.model, training, _kept_objective(base), first, block)

    def _arm(
        self,
        name: str,
        at: str,
        base: Arm,
        model: Model,
        training: Training,
        inner: ObjectiveSettings,
        block: ExpansionBlock,
        control: ControlBlock | None,
    ) -> Arm | None:
        settings = importlib.import_module("components.objectives.hidden_decoding").Settings(
            kind="hidden_decoding",
            base=base.name,
            inner=inner,
            replication=block.replication,
            optimizer=block.optimizer,
            control=control,
        )
        broken = [Problem(f"{at}.{key}", value, rule, remedy) for key, value, rule, remedy in settings.problems(model)]
        if block.optimizer == "keep" and not base.objective.trains and control is None:
            rule = f"{base.name} is imported: it has no optimizer state to go on from"
            broken.append(Problem(f"{at}.optimizer", "keep", rule, "use fresh"))
        self.problems += broken
        if broken:
            return None
        return Arm(name=name, base=base.name, model=model, training=training, objective=settings, first_step=base.next_step)

    def _training(self, base: Arm, changes: Mapping[str, Any], at: str) -> Training | None:
        training: Training | None = self._validate(
            Training, {**_fields(self._file.training), **changes}, f"{at}.training", self.problems
        )
        if training is None:
            return None
        missing = sorted(set(training.seeds) - set(base.training.seeds))
        if missing:
            rule = f"must be among the seeds of {base.name}"
            self.problems.append(Problem(f"{at}.training.seeds", missing, rule, f"choose from {list(base.training.seeds)}"))
        follows = base.next_step > 0
        if follows and training.batch_rows != base.training.batch_rows:
            rule = f"must be that of {base.name}, {base.training.batch_rows}: the batches follow those it has read"
            remedy = f"write {base.training.batch_rows}"
            self.problems.append(Problem(f"{at}.training.batch_rows", training.batch_rows, rule, remedy))
            return None
        return None if missing else training

    def _lineage(self, arm: Arm) -> list[Arm]:
        """The expansions that lead to `arm`, the first of them first."""
        lineage = [arm]
        while lineage[0].base in self.expansions:
            lineage.insert(0, self.expansions[str(lineage[0].base)])
        return lineage

    def _flops_per_token(self, arm: Arm) -> float:
        objective = importlib.import_module("components.objectives.base").build_objective(
            arm, self._file.data.tokenizer.vocab_size, arm.training.seeds[0]
        )
        return float(objective.expected_flops(self._file.data.seq_len))

    def _find(self, key: str, name: str, known: Mapping[str, Arm], told: set[str], what: str) -> Arm | None:
        """The model of that name; one that is absent is told, unless what is wrong with it has been `told`."""
        if name in known:
            return known[name]
        if name not in told:
            remedy = suggest(name, known) or f"choose from {', '.join(known)}"
            self.problems.append(Problem(key, name, f"must be {what}", remedy))
        return None

    def _is_new(self, key: str, name: str, taken: frozenset[str]) -> bool:
        if name in taken:
            self.problems.append(Problem(key, None, "is also the name of another model", "rename one of the two"))
        return name not in taken


def _kept_objective(base: Arm) -> ObjectiveSettings:
    """What goes on from `base` minimises, unless told otherwise."""
    inner: ObjectiveSettings = getattr(base.objective, "inner", base.objective)
    return inner


def _with_inherited(base: Streams | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The streams' keys as written, and those of the base for what is not; how often n is drawn is never inherited."""
    inherited = {} if base is None else {**_fields(base), "sampled": None}
    merged = {**inherited, **changes}
    layers = merged.get("layers")  # as written: anything
    if "local" not in changes and isinstance(layers, tuple) and "cross_local" not in layers:
        merged["local"] = None
    return merged


def _fields(section: Any) -> dict[str, Any]:
    return {key: getattr(section, key) for key in type(section).model_fields}
