"""The section `benchmarks` of `params.yaml`: what models are scored on beside the validation set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from components.config.section import ArmName, Section, broken_rule

BenchmarkName = Literal["arc_easy", "arc_challenge", "hellaswag", "lambada_openai", "openbookqa", "piqa", "winogrande"]


class HubBenchmarks(Section):
    """Benchmarks from the Hugging Face hub, from the data sets that the harness names."""

    kind: Literal["hub"]


class LocalBenchmarks(Section):
    """Benchmarks from parquet files in the hub's columns: `<folder>/<data set>/<configuration>/<split>.parquet`."""

    kind: Literal["files"]
    folder: str = Field(min_length=1, description="holds ai2_arc, hellaswag, lambada_openai, openbookqa, piqa, winogrande")


class TextCorpus(Section):
    """A corpus that is scored but never trained on."""

    paths: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        min_length=1, description="globs of parquet, jsonl, jsonl.gz, jsonl.zst or txt files"
    )
    text_column: str = Field(min_length=1, description="column or JSON key that holds the text; not used for txt")
    max_bytes: int = Field(ge=1, description="whole documents are scored, from the first, until this many UTF-8 bytes")


class Benchmarks(Section):
    """What models are scored on beside the validation set; nothing, when it is empty."""

    tasks: tuple[BenchmarkName, ...] = Field(description="zero-shot benchmarks that every model is scored on; [] for none")
    source: HubBenchmarks | LocalBenchmarks = Field(discriminator="kind")
    limit: int | Literal["all"] = Field(description="documents of each benchmark that are scored, from the first; all for all")
    corpora: Mapping[ArmName, TextCorpus] = Field(description="out-of-domain corpora by name, for bits per byte; {} for none")

    @field_validator("limit", mode="before")
    @classmethod
    def _check_limit(cls, value: object) -> object:
        if value != "all" and not (type(value) is int and value >= 1):
            raise PydanticCustomError("limit", "must be a whole number of at least 1, or all")
        return value

    @model_validator(mode="after")
    def _check(self) -> Benchmarks:
        if len(set(self.tasks)) != len(self.tasks):
            raise broken_rule("tasks", self.tasks, "must not repeat", "remove the duplicate")
        return self
