"""The blocks of a model through torch.compile (`runtime.compile`): a graph for every shape of block, not for every depth.

F_k is k calls of the same graphs, so that N depths need no more of them than one. Easy to miss: torch.compile quietly runs a
function uncompiled once it has more graphs than a limit; here that is an error.
"""

from __future__ import annotations

import torch._dynamo

from components.models import onednn
from components.models.cascade import Cascade

MOST_GRAPHS = 256  # segments x kinds of attention x numbers of streams x with and without gradients stay far below


def compile_blocks(model: Cascade, backend: str = "inductor") -> None:
    """Has every block compiled at its first call, in place: names and values of parameters stay.

    Args:
        backend: of torch.compile; `aot_eager` makes the same graphs and runs them without a compiler.
    """
    torch._dynamo.config.recompile_limit = MOST_GRAPHS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    if backend == "inductor" and next(model.parameters()).device.type == "cpu" and onednn.pays():
        _take_products_as_they_come()
    for block in model.blocks:
        block.compile(backend=backend, dynamic=False)


def _take_products_as_they_come() -> None:
    """Has compiled code in this process call `mm` as it is, and not have it write into memory that was laid out before.

    oneDNN's products come in memory of their own, and would have to be copied: 5% of a step at the quick widths
    (`bench.train_speed`).
    """
    import torch._inductor.kernel.mm  # first: it registers what is replaced here
    from torch._inductor.lowering import make_fallback

    make_fallback(torch.ops.aten.mm.default, warn=False, override_decomp=True)  # type: ignore[no-untyped-call]
