"""Time of scoring every depth from one trunk pass, against scoring depth N alone.

What every depth must pay beyond depth N is its head; the FLOPs of those heads are added to the goal. Single thread, float32.

    python -m bench.evaluation_cost [--size full]
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from bench.turns import Row, Size, at_most, quick_study, quotients, run_alone, take_turns
from components.config.schema import Model, Segment
from components.evaluation.sweep import sweep_batches
from components.models.cascade import Cascade
from components.models.onednn import onednn_products
from components.models.sizes import head_flops, prefix_flops

ROUNDS = {"smoke": 1, "short": 5, "full": 15}
ALLOWED = 1.3


def rows(size: Size) -> list[Row]:
    """The ratio at the quick scale's shape and at one of wider matrices, less the heads' share of the FLOPs."""
    torch.set_num_threads(1)
    quick = quick_study()
    wide = _with_segments(quick.model, ((4, 192), (2, 256), (2, 320)), 64)
    cases = {"quick shape": (quick.model, 1024, 8, 128), "widths 192 to 320": (wide, 4096, 2, 256)}
    if size == "smoke":
        cases = {"smoke shape": (_with_segments(quick.model, ((2, 16), (1, 32)), 16), 64, 2, 16)}
    found = []
    for name, (model, vocab, n_rows, seq_len) in cases.items():
        heads = sum(head_flops(model, vocab, depth) for depth in range(1, model.n_blocks))
        share = heads / prefix_flops(model, vocab, model.n_blocks, seq_len)
        network = Cascade(model, vocab)
        network.init_weights(0)
        tokens_BT = torch.randint(0, vocab, (n_rows, seq_len + 1), generator=torch.Generator().manual_seed(0))
        batch = (tokens_BT[:, :-1], tokens_BT[:, 1:], tokens_BT[:, 1:])
        seconds = take_turns(
            {"all": _sweep(network, batch, range(1, model.n_blocks + 1)), "one": _sweep(network, batch, [model.n_blocks])},
            ROUNDS[size],
        )
        ratio = quotients(seconds["all"], seconds["one"])
        note = f"{ratio.median:.2f}x in all; heads of the other depths {share:.2f}x in FLOPs"
        found.append(Row(3, f"evaluate all depths, {name}", "depth N, + heads", at_most(ALLOWED), ratio.plus(-share), note))
    return found


def _sweep(model: Cascade, batch: tuple[Tensor, Tensor, Tensor], depths: Collection[int]) -> Callable[[], object]:
    def run() -> None:
        sums = torch.zeros(model.n_blocks, dtype=torch.float64)

        def add(depth: int, nll_N: Tensor, _: Tensor) -> None:
            sums[depth - 1] += nll_N.double().sum()

        with onednn_products():  # as the stage does
            sweep_batches(model, [batch], 0, 1, add, depths)

    return run


def _with_segments(model: Model, segments: tuple[tuple[int, int], ...], head_dim: int) -> Model:
    shape = tuple(Segment(n_blocks=n_blocks, d_model=d_model) for n_blocks, d_model in segments)
    return model.model_copy(update={"segments": shape, "head_dim": head_dim})


if __name__ == "__main__":
    run_alone(rows, __doc__)
