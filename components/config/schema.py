"""The typed schema of `params.yaml`: every key, its meaning, unit and range.

The schema mirrors the file one to one. Sections are frozen and strict (no string becomes a number, no unknown key passes), and
nothing here imports torch: a wrong value is reported in well under a second. `loader.py` turns the file into a `Study`.

`runtime` is the one section that never changes a result: no stage lists it among its parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from components.config.backbones import BackboneBlock as BackboneBlock
from components.config.benchmarks import Benchmarks as Benchmarks
from components.config.data import BpeTokenizer as BpeTokenizer
from components.config.data import Data as Data
from components.config.data import FilesSource as FilesSource
from components.config.data import FileTokenizer as FileTokenizer
from components.config.data import FineWebEduSource as FineWebEduSource
from components.config.data import SotuSource as SotuSource
from components.config.model import BlockShape as BlockShape
from components.config.model import LinearRope as LinearRope
from components.config.model import Llama3Rope as Llama3Rope
from components.config.model import Model as Model
from components.config.model import Segment as Segment
from components.config.profile import Profile as Profile
from components.config.runtime import ArmRuntime as ArmRuntime
from components.config.runtime import Runtime as Runtime
from components.config.section import ArmName as ArmName
from components.config.section import Count as Count
from components.config.section import Section as Section
from components.config.section import Share as Share
from components.config.section import broken_rule as broken_rule
from components.config.streams import ControlBlock as ControlBlock
from components.config.streams import ExpansionBlock as ExpansionBlock
from components.config.streams import Streams as Streams

# --- training -----------------------------------------------------------------------------------------------------------


class Training(Section):
    """The recipe that all arms share; an arm may override single keys."""

    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = Field(min_length=1, description="one model is trained per seed")
    steps: int = Field(ge=1, description="optimizer steps")
    batch_rows: int = Field(ge=1, description="global batch: rows of seq_len tokens per optimizer step, over all workers")
    lr: float = Field(gt=0.0, description="peak learning rate")
    warmup_steps: int = Field(ge=0, description="linear warm-up from 0 to lr")
    cooldown_share: Share = Field(description="share of all steps, at the end, over which lr falls linearly to 0")
    beta1: float = Field(ge=0.0, lt=1.0, description="AdamW, first moment decay")
    beta2: float = Field(ge=0.0, lt=1.0, description="AdamW, second moment decay")
    adam_eps: float = Field(gt=0.0, description="AdamW epsilon")
    weight_decay: float = Field(ge=0.0, description="decoupled decay of matrices; norms never decay")
    decay_embeddings: bool = Field(description="does weight decay also act on the input embedding table")
    grad_clip_norm: float = Field(gt=0.0, description="largest L2 norm of the gradient")
    precision: Literal["float32", "bfloat16"] = Field(description="compute dtype of matrix products; weights stay float32")

    @property
    def cooldown_steps(self) -> int:
        """Steps of the cool-down phase, rounded to the nearest step."""
        return round(self.steps * self.cooldown_share)

    @model_validator(mode="after")
    def _check(self) -> Training:
        if self.warmup_steps + self.cooldown_steps > self.steps:
            raise broken_rule(
                "warmup_steps",
                self.warmup_steps,
                f"warm-up + cool-down ({self.cooldown_steps} steps) must fit in steps = {self.steps}",
                "lower warmup_steps or cooldown_share, or raise steps",
            )
        if len(set(self.seeds)) != len(self.seeds):
            raise broken_rule("seeds", self.seeds, "must not repeat", "remove the duplicate seed")
        return self


# --- arms ---------------------------------------------------------------------------------------------------------------


class ArmBlock(Section):
    """One arm as written in the file; `loader.resolve_arm` applies the overrides and types the objective."""

    objective: Mapping[str, Any] = Field(description="`kind` names a file of components/objectives; the rest are its settings")
    model: Mapping[str, Any] = Field(default={}, description="keys of `model` that differ for this arm")
    training: Mapping[str, Any] = Field(default={}, description="keys of `training` that differ for this arm")


class ObjectiveSettings(Section):
    """Base of the settings of an objective; the fields are in its own file under components/objectives."""

    from_scratch: ClassVar[bool] = True  # False: not an objective of `arms`, but of another section
    trains: ClassVar[bool] = True  # False: the weights come from elsewhere
    kind: str

    @abstractmethod
    def trained_depths(self, model: Model) -> tuple[int, ...]:
        """Depths of the trained model that ever get a loss."""

    def problems(self, model: Model) -> list[tuple[str, object, str, str]]:
        """Rules that need the arm's model: (key, value, rule, remedy) of each broken one."""
        return []

    def shape(self, model: Model) -> Model:
        """The model that is trained; by default the arm's cascade itself."""
        return model

    def kept(self, model: Model) -> tuple[tuple[BlockShape, ...], int]:
        """What memory holds for a backward pass: blocks with all their values, and channels of residual streams that wait."""
        return model.blocks, 0


class RepairBlock(Section):
    """A head-only repair of a trained arm, as written in the file; the trunk stays frozen."""

    base: ArmName = Field(description="arm whose untrained depths are repaired, one repaired model per seed")
    part: Literal["norm", "affine", "head", "block"] = Field(description="what every untrained depth gets of its own")
    training: Mapping[str, Any] = Field(default={}, description="keys of `training` that differ for this repair")


class Arm(BaseModel):
    """One arm, backbone, repair, expansion or control, resolved: what is trained, how, and with which objective.

    Attributes:
        base: the arm whose trained models this one starts from; None when it starts from scratch.
        first_step: step of the batch stream that training starts at: those that the bases consumed are not seen again.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    base: str | None
    model: Model
    training: Training
    objective: ObjectiveSettings
    first_step: int = 0

    @property
    def next_step(self) -> int:
        """Step of the batch stream after those that it and its bases have consumed."""
        return self.first_step + (self.training.steps if self.objective.trains else 0)


# --- evaluation, report ----------------------------------------------------------------------------------------


class Evaluation(Section):
    bootstrap_resamples: int = Field(ge=100, description="paired resamples of validation documents for each interval")
    bootstrap_seed: int = Field(ge=0)
    confidence: float = Field(gt=0.5, le=0.9999, description="coverage of the intervals, e.g. 0.95")
    loda_margin_nats: float = Field(ge=0.0, description="a depth is valid for LODA-ppl when NLL < ln V - margin")
    loda_axis: Literal["linear", "log"] = Field(description="throughput axis of the LODA area")


class StudyFile(Section):
    """`params.yaml`, as written."""

    schema_version: Literal[1] = Field(description="version of this schema")
    data: Data
    model: Model
    training: Training
    arms: Mapping[ArmName, ArmBlock] = Field(description="models trained from scratch; {} for none, when there are backbones")
    backbones: Mapping[ArmName, BackboneBlock] = Field(description="pretrained checkpoints that are imported; {} for none")
    repairs: Mapping[ArmName, RepairBlock] = Field(description="repaired copies of trained arms; {} for none")
    expansions: Mapping[ArmName, ExpansionBlock] = Field(
        description="trained further, with more streams or another objective; {} for none"
    )
    controls: Mapping[ArmName, ControlBlock] = Field(description="bases trained further without streams; {} for none")
    evaluation: Evaluation
    benchmarks: Benchmarks
    profile: Profile
    runtime: Runtime

    @model_validator(mode="after")
    def _check(self) -> StudyFile:
        if not self.arms and not self.backbones:
            raise broken_rule("arms", None, "there is nothing to study: no arm and no backbone", "add an arm")
        if self.profile.longest_tokens > self.data.seq_len:
            raise broken_rule(
                "profile",
                self.profile.longest_tokens,
                f"its longest text must fit in the context that is trained, data.seq_len = {self.data.seq_len} tokens",
                "lower context_tokens, decode_steps, prompt_tokens or new_tokens",
            )
        return self


class Study(BaseModel):
    """The whole study, validated, with every arm resolved."""

    model_config = ConfigDict(frozen=True)

    data: Data
    model: Model
    training: Training
    arms: Mapping[str, Arm]
    backbones: Mapping[str, Arm]
    repairs: Mapping[str, Arm]
    expansions: Mapping[str, Arm]
    controls: Mapping[str, Arm]
    evaluation: Evaluation
    benchmarks: Benchmarks
    profile: Profile
    runtime: Runtime

    @property
    def models(self) -> dict[str, Arm]:
        """Everything that is evaluated: arms, backbones, repairs, expansions, controls."""
        return {**self.arms, **self.backbones, **self.repairs, **self.expansions, **self.controls}
