"""The section `profile` of `params.yaml`: what the latency of every model is measured on. Every depth is measured, at every number
of streams that the model is trained for.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from components.config.section import Section, broken_rule

Sizes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]


class SpeculationGrid(Section):
    """Self-speculative decoding, drafted by every depth below the whole model; with n streams by every n-th."""

    draft_tokens: Sizes = Field(description="g, tokens drafted per round")
    prompts: int = Field(ge=1, description="texts continued, each a validation row's beginning")
    prompt_tokens: int = Field(ge=1, description="length of each prompt")
    new_tokens: int = Field(ge=2, description="tokens generated for each prompt")


class Profile(Section):
    """The loads that latency is measured under, and the drafts that speculation is tried with."""

    batch_sizes: Sizes = Field(description="sequences decoded at once")
    context_tokens: Sizes = Field(description="tokens in the cache of each sequence when decoding starts")
    decode_steps: int = Field(ge=1, description="decoding steps timed per turn, after the context")
    repeats: int = Field(ge=3, description="turns of a depth, with n streams 1/n of them but 3 at least; quartiles are over them")
    dtype: Literal["float32", "bfloat16"] = Field(description="of weights and cache, as the model would be served")
    speculation: SpeculationGrid

    @property
    def longest_tokens(self) -> int:
        """Most tokens that any sequence will have."""
        grid = self.speculation
        return max(max(self.context_tokens) + self.decode_steps, grid.prompt_tokens + grid.new_tokens)

    @model_validator(mode="after")
    def _check(self) -> Profile:
        for key in ("batch_sizes", "context_tokens"):
            sizes: tuple[int, ...] = getattr(self, key)
            if len(set(sizes)) != len(sizes):
                raise broken_rule(key, sizes, "must not repeat", "remove the duplicate")
        return self
