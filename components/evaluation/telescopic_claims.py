"""The claims of Telescopic Language Models (arXiv 2609.35769) and the rule by which each is judged here.

The paper's numbers stand beside a verdict for comparison only; no rule reads them, except the cost ratios, which are the claim.
Easy to get wrong: a rule has to be decidable at any scale, so it compares arms of this study, never absolute perplexities.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from components.config.paper_arms import (
    EXIT_GRID_ARM,
    LOG_UNIFORM_ARM,
    SUITE_ARM,
    TWIN_ARMS,
    UNIFORM_ARM,
    PaperArm,
    is_suite,
    telescopic_with,
)
from components.evaluation.bootstrap import FloatArray, area
from components.evaluation.findings import (
    ArmEvidence,
    Bench,
    Claim,
    Judgement,
    Role,
    above,
    agreed,
    below,
    combine,
    conclude,
    spell,
)

Arms = tuple[ArmEvidence, ...]

# A block that makes NLL rise by more than this breaks a smooth curve; about 10% of perplexity.
SMOOTH_RISE_NATS = 0.1
# A full-size TLM within this much of its twin's perplexity pays a small price; the paper's is 7.2%.
SMALL_PRICE_SHARE = 0.10
# A cost ratio this close to the paper's is the same ratio.
COST_TOLERANCE = 0.10


UNIFORM = Role(UNIFORM_ARM.title, UNIFORM_ARM.is_it)
LOG_UNIFORM = Role(LOG_UNIFORM_ARM.title, LOG_UNIFORM_ARM.is_it)
EXIT_GRID = Role(EXIT_GRID_ARM.title, EXIT_GRID_ARM.is_it)
NO_ANCHOR = Role("TLM, uniform sampler without anchor", telescopic_with("uniform", has_anchor=False))
SUITE = Role("MLMS suite", is_suite)
PAPER_SUITE = Role(SUITE_ARM.title, SUITE_ARM.is_it)
TWIN = Role(TWIN_ARMS.title, TWIN_ARMS.is_it, has_any_shape=True)
HEAD_REPAIR = Role(
    "head-only repair of an MLMS trunk",
    lambda objective: objective.get("kind") == "repair" and objective.get("part") == "head",
)


def _is_valid_and_smooth(bench: Bench, uniform: Arms) -> Judgement:
    arm = uniform[0]
    chance = math.log(arm.vocab_size)
    worst = 1 + int(arm.ordered[0].argmax())
    highest = bench.at(arm, worst)
    conditions = [below(highest, chance)]
    text = f"{arm.name}: highest NLL {highest.estimate:.3f} nats at k = {worst} (chance {chance:.3f})"
    if arm.n_blocks > 1:
        rises = arm.ordered[0, 1:] - arm.ordered[0, :-1]
        step = 2 + int(rises.argmax())
        rise = bench.difference(arm, arm, step, step - 1)
        conditions.append(below(rise, SMOOTH_RISE_NATS))
        text += f"; largest rise {spell(rise)} from k = {step - 1} to {step}"
    return Judgement(conclude(conditions), text)


def _off_exit_depths(arm: ArmEvidence) -> list[int]:
    return [depth for depth in range(1, arm.n_blocks + 1) if depth not in arm.exits]


def _is_worse_past_an_exit(bench: Bench, suites: Arms) -> Judgement:
    judgements = []
    for arm in suites:
        later = [depth for depth in _off_exit_depths(arm) if depth > arm.exits[0]]
        if not later:
            judgements.append((arm.name, Judgement("not run", "no depth between two exits")))
            continue
        exits = {depth: max(exit_depth for exit_depth in arm.exits if exit_depth < depth) for depth in later}
        worst = max(later, key=lambda depth: float(arm.ordered[0, depth - 1] - arm.ordered[0, exits[depth] - 1]))
        rise = bench.difference(arm, arm, worst, exits[worst])
        text = f"k = {worst} minus its shallower exit k = {exits[worst]}: {spell(rise)}"
        judgements.append((arm.name, Judgement(conclude([above(rise, 0.0)]), text)))
    return combine(judgements)


def _is_worse_than_chance_off_exit(bench: Bench, suites: Arms) -> Judgement:
    judgements = []
    for arm in suites:
        chance, depths = math.log(arm.vocab_size), _off_exit_depths(arm)
        if not depths:
            judgements.append((arm.name, Judgement("not run", "every depth is an exit")))
            continue
        worst = max(depths, key=lambda depth: float(arm.ordered[0, depth - 1]))
        count = sum(bool(arm.ordered[0, depth - 1] > chance) for depth in depths)
        highest = bench.at(arm, worst)
        text = f"{count} of {len(depths)} off-exit depths; worst k = {worst}: {highest.estimate:.3f} nats (chance {chance:.3f})"
        judgements.append((arm.name, Judgement(conclude([above(highest, chance)]), text)))
    return combine(judgements)


def _has_lower_area(bench: Bench, uniform: Arms, suites: Arms) -> Judgement:
    judgements = []
    for suite in suites:
        difference = bench.area_difference(uniform[0], suite)
        text = f"AULB of {uniform[0].name} minus {suite.name}: {spell(difference)}"
        judgements.append((suite.name, Judgement(conclude([below(difference, 0.0)]), text)))
    return combine(judgements)


def _suites_win_at_inner_exits(bench: Bench, uniform: Arms, suites: Arms) -> Judgement:
    judgements = []
    for suite in suites:
        differences = {depth: bench.difference(suite, uniform[0], depth) for depth in suite.exits[:-1]}
        text = ", ".join(f"k = {depth}: {spell(difference)}" for depth, difference in differences.items())
        verdict = conclude(below(difference, 0.0) for difference in differences.values())
        judgements.append((suite.name, Judgement(verdict, text or "one exit only")))
    return combine(judgements)


def _exit_grid_is_best_at_full_size(bench: Bench, uniform: Arms, grid: Arms) -> Judgement:
    difference = bench.difference(grid[0], uniform[0], grid[0].n_blocks)
    text = f"{grid[0].name} minus {uniform[0].name} at k = {grid[0].n_blocks}: {spell(difference)}"
    return Judgement(conclude([below(difference, 0.0)]), text)


def _exit_grid_is_not_continuous(bench: Bench, uniform: Arms, grid: Arms) -> Judgement:
    difference = bench.area_difference(grid[0], uniform[0])
    text = f"AULB of {grid[0].name} minus {uniform[0].name}: {spell(difference)}"
    return Judgement(conclude([above(difference, 0.0)]), text)


def _no_anchor_hurts_the_full_model(bench: Bench, uniform: Arms, bare: Arms) -> Judgement:
    full = bench.difference(bare[0], uniform[0], bare[0].n_blocks)
    area_cost = bench.area_difference(bare[0], uniform[0])
    pairs = bench.of(_excess(bare[0], uniform[0]), bare[0].n_documents)
    text = f"without anchor: full model {spell(full)}, AULB {spell(area_cost)}, full minus AULB {spell(pairs)}"
    return Judgement(conclude([above(full, 0.0), above(pairs, 0.0)]), text)


def _excess(bare: ArmEvidence, uniform: ArmEvidence) -> FloatArray:
    """What the full model loses beyond what AULB loses, sample by sample."""
    rows = min(len(bare.samples), len(uniform.samples))
    change = bare.ordered[:rows] - uniform.ordered[:rows]
    excess: FloatArray = change[:, -1] - area(change)
    return excess


def _log_uniform_trades_the_first_depth(bench: Bench, uniform: Arms, log_uniform: Arms) -> Judgement:
    if log_uniform[0].n_blocks < 2:
        return Judgement("not run", "needs two depths")
    first = bench.difference(log_uniform[0], uniform[0], 1)
    second = bench.difference(log_uniform[0], uniform[0], 2)
    text = f"{log_uniform[0].name} minus {uniform[0].name}: k = 1 {spell(first)}, k = 2 {spell(second)}"
    return Judgement(conclude([above(first, 0.0), below(second, 0.0)]), text)


def _head_repair_helps_only_partly(bench: Bench, uniform: Arms, suites: Arms, repaired: Arms) -> Judgement:
    by_name = {suite.name: suite for suite in suites}
    pairs = [(arm, by_name[str(base)]) for arm in repaired if (base := arm.objective.get("base")) in by_name]
    if not pairs:
        return Judgement("not run", "no results of: the suite that a head-only repair is of")
    arm, trunk = pairs[0]
    columns = [depth - 1 for depth in _off_exit_depths(arm)]
    if not columns:
        return Judgement("not run", "every depth is an exit")
    rows = min(len(arm.samples), len(trunk.samples), len(uniform[0].samples))
    mean = {one.name: one.ordered[:rows, columns].mean(axis=1) for one in (arm, trunk, uniform[0])}
    gain = bench.of(mean[arm.name] - mean[trunk.name], arm.n_documents)
    rest = bench.of(mean[arm.name] - mean[uniform[0].name], arm.n_documents)
    text = f"mean over off-exit depths: repaired minus {trunk.name} {spell(gain)}, repaired minus {uniform[0].name} {spell(rest)}"
    return Judgement(conclude([below(gain, 0.0), above(rest, 0.0)]), text)


def _pays_a_small_price(bench: Bench, uniform: Arms, twins: Arms) -> Judgement:
    full = [twin for twin in twins if twin.n_blocks == uniform[0].n_blocks]
    if not full:
        return Judgement("not run", "no results of: the full-size twin")
    price = bench.difference(uniform[0], full[0], uniform[0].n_blocks)
    share = f"perplexity {100 * math.expm1(min(price.estimate, 700.0)):+.1f}%"
    verdict = conclude([above(price, 0.0), below(price, math.log1p(SMALL_PRICE_SHARE))])
    return Judgement(verdict, f"{uniform[0].name} minus {full[0].name}: {spell(price)}, {share}")


def _costs(paper: PaperArm, is_sum: bool = False) -> Callable[..., Judgement]:
    """Judge of a cost relative to the uniform arm's; `is_sum` adds up the first twin of each exit."""

    def judge(bench: Bench, uniform: Arms, others: Arms) -> Judgement:
        base = uniform[0]
        first = {arm.n_blocks: arm for arm in reversed(others)}
        if is_sum and not set(base.exits) <= set(first):
            return Judgement("not run", f"no results of: one twin for each of the {len(base.exits)} exits")
        chosen = [first[depth] for depth in base.exits] if is_sum else others[:1]
        names = " + ".join(arm.name for arm in chosen)
        hours, flops = [arm.device_hours for arm in chosen], [arm.flops for arm in chosen]
        if not base.device_hours or not base.flops or None in hours or None in flops:
            return Judgement("inconclusive", f"{names}: no cost recorded")
        if {arm.cost_unit for arm in chosen} != {base.cost_unit}:
            return Judgement("inconclusive", f"{names}: costs are not in one unit")
        measured = sum(value for value in hours if value is not None) / base.device_hours
        analytic = sum(value for value in flops if value is not None) / base.flops
        agree = [abs(value / paper.relative_cost - 1.0) <= COST_TOLERANCE for value in (measured, analytic)]
        text = f"{names} over {base.name}: {measured:.3f} in {base.cost_unit}, {analytic:.3f} in FLOPs"
        return agreed(agree, text)

    return judge


_COST_RULE = "measured hours and FLOPs both within 10% of the paper's ratio; inconclusive when one is"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "TLM with the uniform sampler is valid and smooth at every depth",
        "ppl 81 at k = 1 to 14.99 at k = 20",
        f"every depth better than chance, and no block raises NLL by more than {SMOOTH_RISE_NATS} nats",
        (UNIFORM,),
        _is_valid_and_smooth,
    ),
    Claim(
        "MLMS: blocks added past an exit make the model worse until the next exit",
        "off-exit collapse, k = 5: ppl 1,412",
        "in every suite, some depth between two exits is worse than the shallower exit",
        (SUITE,),
        _is_worse_past_an_exit,
    ),
    Claim(
        "MLMS: some off-exit depths collapse to worse than chance",
        "k = 1: ppl 438,883, vocabulary 49,152",
        "in every suite, the worst off-exit depth has NLL above ln V",
        (SUITE,),
        _is_worse_than_chance_off_exit,
    ),
    Claim(
        "TLM has a lower area under the curve (AULB) than MLMS",
        "3.28 against 5.73 to 5.90",
        "the paired AULB difference to every suite is below 0",
        (UNIFORM, SUITE),
        _has_lower_area,
    ),
    Claim(
        "MLMS is better than TLM at the exits before the last",
        "k = 11: ppl 21.89 against 24.38; k = 16: 17.47 against 19.11",
        "the paired NLL difference of every suite is below 0 at each exit before the last",
        (UNIFORM, SUITE),
        _suites_win_at_inner_exits,
    ),
    Claim(
        "The exit-grid sampler gives the best full-size TLM",
        "ppl 14.65 against 14.99",
        "the paired NLL difference to the uniform sampler at k = N is below 0",
        (UNIFORM, EXIT_GRID),
        _exit_grid_is_best_at_full_size,
    ),
    Claim(
        "The exit-grid sampler loses continuity",
        "AULB 6.21 against 3.28; k = 5: ppl 2,693",
        "its AULB is above the uniform sampler's",
        (UNIFORM, EXIT_GRID),
        _exit_grid_is_not_continuous,
    ),
    Claim(
        "Dropping the anchor hurts the full model, not the area",
        "full ppl 22.32 against 14.99; AULB 3.41 against 3.28",
        "NLL at k = N rises, and rises by more than AULB does",
        (UNIFORM, NO_ANCHOR),
        _no_anchor_hurts_the_full_model,
    ),
    Claim(
        "The log-uniform sampler leaves k = 1 untrained and makes k = 2 better",
        "k = 1: ppl 6,740 against 81; k = 2: 40.0 against 54.7",
        "NLL above the uniform sampler's at k = 1 and below it at k = 2",
        (UNIFORM, LOG_UNIFORM),
        _log_uniform_trades_the_first_depth,
    ),
    Claim(
        "Repairing only the head of MLMS helps off-exit depths only partly",
        "k = 5: ppl 1,412 to 177",
        "mean NLL over off-exit depths falls below the suite's and stays above TLM's",
        (UNIFORM, SUITE, HEAD_REPAIR),
        _head_repair_helps_only_partly,
    ),
    Claim(
        "The full-size TLM pays a small price against its twin",
        "ppl 14.99 against 13.98 (+7.2%)",
        f"perplexity above the twin's, by at most {SMALL_PRICE_SHARE:.0%}",
        (UNIFORM, TWIN),
        _pays_a_small_price,
    ),
    Claim(
        "TLM log-uniform costs 0.916 of uniform", "120 / 131 GPU-hours", _COST_RULE, (UNIFORM, LOG_UNIFORM), _costs(LOG_UNIFORM_ARM)
    ),
    Claim("TLM exit-grid costs 1.122 of uniform", "147 / 131 GPU-hours", _COST_RULE, (UNIFORM, EXIT_GRID), _costs(EXIT_GRID_ARM)),
    Claim("MLMS costs 1.137 of TLM uniform", "149 / 131 GPU-hours", _COST_RULE, (UNIFORM, PAPER_SUITE), _costs(SUITE_ARM)),
    Claim("The three twins cost 1.65 of TLM uniform", "216 / 131 GPU-hours", _COST_RULE, (UNIFORM, TWIN), _costs(TWIN_ARMS, True)),
)
