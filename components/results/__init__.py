"""The results files: what every stage leaves under `artifacts/`, typed, versioned and strict.

The pipeline's one way to pass numbers on. JSON stays valid whatever the numbers are: a value that is not finite is null, and
`state` says which it was.
"""

from components.results.benchmarks import (
    ArmBenchmarks,
    BenchmarkDepth,
    BenchmarkOverlap,
    BenchmarkScores,
    Contamination,
    CorpusDepth,
    CorpusScores,
    MetricScore,
    SeedBenchmarks,
)
from components.results.cost import ArmCost, SeedCost
from components.results.evaluation import ArmEvaluation, DepthScore, SeedEvaluation, ValidationSet
from components.results.files import read_record, write_record
from components.results.latency import (
    ArmProfile,
    LatencyCell,
    LatencyViolation,
    OperatingPoint,
    OperatingPoints,
    SpeculationCell,
    Timing,
)
from components.results.record import RESULTS_VERSION, Record, State, finite, perplexity

__all__ = [
    "RESULTS_VERSION",
    "ArmBenchmarks",
    "ArmCost",
    "ArmEvaluation",
    "ArmProfile",
    "BenchmarkDepth",
    "BenchmarkOverlap",
    "BenchmarkScores",
    "Contamination",
    "CorpusDepth",
    "CorpusScores",
    "DepthScore",
    "LatencyCell",
    "LatencyViolation",
    "MetricScore",
    "OperatingPoint",
    "OperatingPoints",
    "Record",
    "SeedBenchmarks",
    "SeedCost",
    "SeedEvaluation",
    "SpeculationCell",
    "State",
    "Timing",
    "ValidationSet",
    "finite",
    "perplexity",
    "read_record",
    "write_record",
]
