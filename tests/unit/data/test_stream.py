"""The batch stream is a pure function of (data, seed, step): exact resume, any worker count, every row once an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from components.config.problems import DataError
from components.data.stream import IGNORED, BatchStream, PackedRows
from tests.unit.data.tiny_corpus import pack


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> PackedRows:
    """45 rows of 8 targets; the last has 4."""
    documents = [[(i + j) % 63 + 1 for j in range(7 if i < 6 else 6)] for i in range(50)]
    packed = pack(tmp_path_factory.mktemp("rows"), documents, seq_len=8, bytes_per_file=100)
    assert len(packed) == 45
    assert packed.n_valid([44])[0] == 4
    return packed


def test_any_number_of_resumes_gives_the_same_batches_as_none(rows: PackedRows) -> None:
    straight = BatchStream(rows, 42, 4)
    expected = [straight.batch(step) for step in range(100)]
    resumed = []
    for start, stop in ((0, 10), (10, 20), (20, 35), (35, 100)):
        stream = BatchStream(PackedRows.open(rows.folder), 42, 4)  # a new process knows nothing but the step
        resumed += [stream.batch(step) for step in range(start, stop)]
    for one, other in zip(expected, resumed, strict=True):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.labels, other.labels)
        assert one.n_valid_global == other.n_valid_global


def test_each_row_comes_once_an_epoch_with_a_stop_at_every_seventh_batch(rows: PackedRows) -> None:
    seen: Counter[int] = Counter()
    stream = BatchStream(rows, 1, 5)
    for step in range(2 * 45 // 5):
        stream = BatchStream(rows, 1, 5) if step % 7 == 0 else stream
        seen.update(stream.global_rows(step).tolist())
        if step == 45 // 5 - 1:
            assert seen == Counter(range(45))
    assert seen == Counter(dict.fromkeys(range(45), 2))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_workers_shares_concatenate_to_the_global_batch(rows: PackedRows, workers: int) -> None:
    for step in (0, 5, 11, 12):
        whole = BatchStream(rows, 42, 8).batch(step)
        shares = [BatchStream(rows, 42, 8).batch(step, rank, workers) for rank in range(workers)]
        np.testing.assert_array_equal(np.concatenate([share.inputs for share in shares]), whole.inputs)
        np.testing.assert_array_equal(np.concatenate([share.labels for share in shares]), whole.labels)
        assert {share.n_valid_global for share in shares} == {int((whole.labels != IGNORED).sum())}


def test_a_batch_goes_over_the_end_of_an_epoch(rows: PackedRows) -> None:
    stream = BatchStream(rows, 42, 8)
    across = stream.global_rows(5)  # rows 40..47 of the sequence: 5 of epoch 0, 3 of epoch 1
    first = np.concatenate([stream.global_rows(step) for step in range(6)])[:45]
    assert sorted(first) == list(range(45))
    assert len(across) == 8
    assert sorted(np.concatenate([stream.global_rows(step) for step in range(5, 12)])[5:50]) == list(range(45))


def test_epochs_and_seeds_have_orders_of_their_own(rows: PackedRows) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return BatchStream(rows, seed, 45).global_rows(epoch).tolist()

    orders = [order(42, 0), order(42, 1), order(43, 0)]
    assert all(sorted(one) == list(range(45)) for one in orders)
    assert len({tuple(one) for one in orders}) == 3
    assert order(42, 0) == orders[0]


def test_the_order_sorts_the_rows_by_the_published_philox_generator(rows: PackedRows) -> None:
    """Against a slow Philox-4x64-10 of our own: the order of rows cannot change with a version of NumPy."""
    keys = [word for counter in range(1, 13) for word in philox_4x64(counter, key=(42, 3))][:45]
    assert BatchStream(rows, 42, 45).global_rows(3).tolist() == sorted(range(45), key=keys.__getitem__)


def philox_4x64(counter: int, key: tuple[int, int]) -> list[int]:
    """One block of Philox-4x64-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011)."""
    words, (k0, k1), low = [counter, 0, 0, 0], key, 2**64 - 1
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [(b >> 64) ^ words[1] ^ k0, b & low, (a >> 64) ^ words[3] ^ k1, a & low]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & low, (k1 + 0xBB67AE8584CAA73B) & low
    return words


def test_the_fingerprint_continues_from_a_checkpoint_and_from_itself(rows: PackedRows) -> None:
    straight = BatchStream(rows, 42, 4).fingerprint(30)
    walking = BatchStream(rows, 42, 4)
    for step in range(31):
        last = walking.fingerprint(step)
    assert last == straight
    stored = BatchStream(rows, 42, 4).fingerprint(12)
    assert BatchStream(rows, 42, 4).fingerprint(30, known=(12, stored)) == straight
    assert walking.fingerprint(12) == stored, "going back is allowed"


def test_the_fingerprint_tells_seeds_and_steps_apart(rows: PackedRows) -> None:
    different = {BatchStream(rows, seed, 4).fingerprint(steps) for seed in (1, 2) for steps in (1, 2, 3)}
    assert len(different) == 6


def test_a_corpus_smaller_than_one_batch_is_an_error_with_both_numbers(rows: PackedRows) -> None:
    with pytest.raises(DataError, match=r"smaller than one batch: 45 rows.*batch_rows is 46") as error:
        BatchStream(rows, 42, 46)
    assert "training.batch_rows" in str(error.value)


@pytest.mark.parametrize(("rank", "workers"), [(0, 3), (2, 2), (-1, 2)])
def test_workers_that_cannot_share_the_batch_are_an_error(rows: PackedRows, rank: int, workers: int) -> None:
    with pytest.raises(ValueError, match="cannot share"):
        BatchStream(rows, 42, 8).batch(0, rank, workers)


def test_no_row_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row files"):
        PackedRows.open(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, 0.99])
def test_a_truncated_row_file_is_an_error_that_names_it(tmp_path: Path, keep: float) -> None:
    pack(tmp_path, [[1, 2, 3]] * 200, seq_len=8)
    path = tmp_path / "rows-00000.arrow"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(DataError, match=r"rows-00000\.arrow: missing, truncated or damaged"):
        PackedRows.open(tmp_path)


def test_a_missing_row_file_is_an_error(tmp_path: Path) -> None:
    pack(tmp_path, [[1, 2, 3]] * 200, seq_len=8, bytes_per_file=100)
    (tmp_path / "rows-00003.arrow").unlink()
    with pytest.raises(DataError, match="89 rows, expected 100: a file is missing"):
        PackedRows.open(tmp_path)


def test_row_files_of_two_packings_are_an_error(tmp_path: Path) -> None:
    pack(tmp_path, [[1, 2, 3]] * 200, seq_len=8)
    pack(tmp_path / "other", [[1, 2, 4]] * 200, seq_len=8)
    (tmp_path / "other" / "rows-00000.arrow").rename(tmp_path / "rows-00001.arrow")
    with pytest.raises(DataError, match=r"rows-00001\.arrow: belongs to another packing"):
        PackedRows.open(tmp_path)


def test_an_id_outside_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    rows = pack(tmp_path, [[1, 200, 3]], seq_len=8, vocab_size=100)
    with pytest.raises(DataError, match="token id 200 outside the vocabulary of 100"):
        rows.rows([0])
