"""A mixture of experts in the parameter file: what takes the place of the SwiGLU of every block."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from components.config.section import Count, Section, broken_rule


class Experts(Section):
    """Fine-grained experts: every row goes to the `top_k` experts of its block that its router scores highest, none is dropped."""

    n_experts: Count = Field(description="routed experts of a block")
    top_k: Count = Field(description="of them, those that a row goes to")
    d_inner: Count = Field(description="inner width of the SwiGLU of one expert, in every segment")
    n_shared: int = Field(
        ge=0, description="shared experts: one SwiGLU of n_shared x d_inner that every row goes through; 0 for none"
    )
    gate: Literal["softmax", "sigmoid"] = Field(
        description="score of an expert: its share of a softmax, or a sigmoid of its own; those chosen are divided by their sum"
    )
    balance: Literal["bias", "auxiliary"] = Field(
        description="bias: after a step, experts below the mean load are lifted in the choice, others lowered; auxiliary: a loss"
    )
    balance_weight: float = Field(
        gt=0.0, description="what a step adds to or takes from a bias; or the weight of the auxiliary loss"
    )

    @property
    def active_inner(self) -> int:
        """Inner width that one row goes through: of its top_k experts and of the shared ones."""
        return (self.top_k + self.n_shared) * self.d_inner

    @model_validator(mode="after")
    def _check(self) -> Experts:
        if self.top_k > self.n_experts:
            raise broken_rule("top_k", self.top_k, f"must be at most n_experts = {self.n_experts}", "lower it or add experts")
        return self
