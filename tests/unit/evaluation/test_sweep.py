"""The one-pass depth sweep against N separate evaluations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from components.data.documents import ValidationDocuments
from components.data.stream import PackedRows, inputs_and_labels
from components.evaluation.sweep import score_cells, score_depths, sweep_cells, sweep_depths, write_document_scores
from components.models.cascade import Cascade
from tests.toys import toy_cascade, toy_rows


@pytest.fixture
def rows(tmp_path: Path) -> PackedRows:
    return PackedRows.open(toy_rows(tmp_path, n_documents=9, split="validation", seq_len=40) / "validation")


@pytest.fixture
def documents(rows: PackedRows) -> ValidationDocuments:
    """Cut from the stream itself, one token at a time."""
    tokens, n_valid = rows.rows(range(len(rows)))
    targets = [int(token) for row, valid in zip(tokens, n_valid, strict=True) for token in row[1 : valid + 1]]
    ends = [i for i, token in enumerate(targets) if token == rows.eos_id]
    lengths = np.diff([-1, *ends])
    return ValidationDocuments(tuple(f"d{i}" for i in range(9)), lengths, lengths * 3)


def _slow(model: Cascade, rows: PackedRows, documents: ValidationDocuments, depth: int) -> np.ndarray:
    """NLL per document at one depth, row by row, from whole logits."""
    losses: list[float] = []
    for i in range(len(rows)):
        tokens, n_valid = rows.rows([i])
        inputs, labels = (torch.from_numpy(array) for array in inputs_and_labels(tokens, n_valid))
        row = F.cross_entropy(model(inputs, depth)[0], labels[0], reduction="none")
        losses += row[: n_valid[0]].tolist()
    ends = np.cumsum(documents.n_tokens)
    assert ends[-1] == len(losses)
    return np.array([sum(losses[end - n : end]) for end, n in zip(ends, documents.n_tokens, strict=True)])


def test_one_pass_equals_separate_evaluations_document_by_document(rows: PackedRows, documents: ValidationDocuments) -> None:
    model = toy_cascade(dtype=torch.float32)
    sweep = sweep_depths(model, rows, documents, batch_rows=4)
    for depth in range(1, 6):
        # float32 sums over at most 30 tokens
        np.testing.assert_allclose(sweep.nll_nats[:, depth - 1], _slow(model, rows, documents, depth), rtol=1e-5)


def test_batch_size_does_not_matter(rows: PackedRows, documents: ValidationDocuments) -> None:
    model = toy_cascade(dtype=torch.float32)
    together, single = (sweep_depths(model, rows, documents, batch_rows=n).nll_nats for n in (64, 1))
    np.testing.assert_allclose(together, single, rtol=1e-5)


def test_every_depth_really_runs_its_blocks(rows: PackedRows, documents: ValidationDocuments) -> None:
    model = toy_cascade(dtype=torch.float32)
    sweep = sweep_depths(model, rows, documents, batch_rows=4)
    assert sweep.blocks_run == (1, 2, 3, 4, 5)
    totals = sweep.nll_nats.sum(axis=0)
    assert len(set(totals.tolist())) == 5
    assert not any(block._forward_hooks for block in model.blocks)


def test_scores_are_means_over_tokens_and_bits_over_bytes(rows: PackedRows, documents: ValidationDocuments) -> None:
    model = toy_cascade(dtype=torch.float32)
    sweep = sweep_depths(model, rows, documents, batch_rows=4)
    scores = score_depths(model, sweep, documents, seed=7, seq_len=rows.seq_len)
    total = float(sweep.nll_nats[:, 2].sum())
    third = scores.depths[2]
    assert third.nll_nats == pytest.approx(total / documents.n_tokens.sum())
    assert third.ppl == pytest.approx(np.exp(total / documents.n_tokens.sum()))
    assert third.bits_per_byte == pytest.approx(total / np.log(2) / documents.n_bytes.sum())
    nlls = [score.nll_nats for score in scores.depths]
    assert scores.aulb_nats == pytest.approx(np.trapezoid(nlls) / 4)


def test_a_depth_that_is_not_finite_is_flagged_and_the_others_stand(rows: PackedRows, documents: ValidationDocuments) -> None:
    model = toy_cascade(dtype=torch.float32)
    with torch.no_grad():
        model.exits[0].head.weight.fill_(float("nan"))
    scores = score_depths(model, sweep_depths(model, rows, documents, 4), documents, 0, rows.seq_len)
    assert [score.state for score in scores.depths] == ["nan", "nan", "ok", "ok", "ok"]
    assert scores.depths[0].nll_nats is None
    assert scores.aulb_nats is None
    assert scores.aulb_clipped_nats is not None


def test_masked_evaluation_of_a_packed_row_is_the_mean_of_its_documents_alone(
    rows: PackedRows, documents: ValidationDocuments
) -> None:
    model = toy_cascade(dtype=torch.float32, document_attention="block_diagonal")
    packed = sweep_depths(model, rows, documents, 4).nll_nats
    tokens, n_valid = rows.rows(range(len(rows)))
    stream = [0, *(int(t) for row, valid in zip(tokens, n_valid, strict=True) for t in row[1 : valid + 1])]
    start, checked = 0, 0
    for i, length in enumerate(documents.n_tokens):
        alone = torch.tensor([stream[start : start + length + 1]])
        if start // rows.seq_len == (start + length - 1) // rows.seq_len:  # the document lies in one row
            nll = F.cross_entropy(model(alone[:, :-1], 5)[0], alone[0, 1:], reduction="sum")
            assert packed[i, 4] == pytest.approx(float(nll), rel=1e-5)
            checked += 1
        start += length
    assert checked >= 2


def test_document_scores_are_one_line_per_seed_and_document(
    tmp_path: Path, rows: PackedRows, documents: ValidationDocuments
) -> None:
    sweep = sweep_depths(toy_cascade(dtype=torch.float32), rows, documents, 4)
    write_document_scores(tmp_path / "arm.documents.parquet", [(1, sweep), (2, sweep)], documents)
    table = pq.read_table(tmp_path / "arm.documents.parquet")
    assert table.column("seed").to_pylist() == [1] * 9 + [2] * 9
    assert table.column("document").to_pylist() == [*range(9)] * 2
    np.testing.assert_array_equal(np.array(table.column("nll_nats").to_pylist()[9:]), sweep.nll_nats)


def test_every_number_of_streams_is_a_sweep_of_its_own(tmp_path: Path, rows: PackedRows, documents: ValidationDocuments) -> None:
    from components.models.sizes import prefix_flops, prefix_parameters
    from tests.unit.models.test_streams import toy_streamed

    model = toy_streamed(dtype=torch.float32, n_streams=4, sampled=(1, 2, 4), supervision="all")
    sweeps = sweep_cells(model, rows, documents, batch_rows=4)
    assert [sweep.n_streams for sweep in sweeps] == [1, 2, 4]
    for sweep in sweeps:
        with model.running(sweep.n_streams):
            np.testing.assert_allclose(sweep.nll_nats[:, 2], _slow(model, rows, documents, 3), rtol=1e-5)
    scores = score_cells(model, sweeps, documents, seed=7, seq_len=rows.seq_len)
    assert [(score.n_streams, score.depth) for score in scores.depths] == [(n, k) for n in (1, 2, 4) for k in range(1, 6)]
    most = score_depths(model, sweeps[-1], documents, seed=7, seq_len=rows.seq_len)
    assert scores.aulb_nats == most.aulb_nats
    cell = scores.depths[7]  # two streams, depth 3; only the last one is read out, whatever was trained
    served = model.settings.serving(2)
    assert served.streams is not None
    assert served.streams.supervision == "last"
    assert cell.parameters == prefix_parameters(served, model.vocab_size, 3)
    assert cell.flops_per_token == prefix_flops(served, model.vocab_size, 3, rows.seq_len)
    write_document_scores(tmp_path / "arm.documents.parquet", [(7, sweep) for sweep in sweeps], documents)
    table = pq.read_table(tmp_path / "arm.documents.parquet")
    assert table.column("n_streams").to_pylist() == [1] * 9 + [2] * 9 + [4] * 9
