"""Random cases against the oracle: shapes, dtypes, options, strides, groups and steps, drawn from a seed.

`pytest tests/python/oracle/test_differential.py --cases 5000` draws more of them, `--case SEED` one alone.
"""

import pytest
from differential import CONDITION, is_in_doubt, largest_excess, prepare, take_steps

REJECTED = 0.05  # the share of cases that may be too ill-conditioned to compare; it is 0.005


def test_random_cases_equal_the_oracle(request: pytest.FixtureRequest) -> None:
    one, count = request.config.getoption("--case"), request.config.getoption("--cases")
    seeds = range(count) if one is None else [one]
    rejected, failures = 0, []
    for seed in seeds:
        case, condition = prepare(seed)
        if condition > CONDITION:
            rejected += 1
            continue
        take_steps(case)
        if is_in_doubt(case, condition):
            rejected += 1
            continue
        for member in case.members:
            worst = largest_excess(member, case.optimizer, case.steps)
            if not worst <= 1:  # a NaN is not
                failures.append(f"--case {seed}: {worst:.3g} of the bound at κ = {condition:.3g}: {member}")
    assert not failures, f"{len(failures)} parameters in {len(seeds)} cases:\n" + "\n".join(failures[:10])
    assert rejected <= REJECTED * len(seeds), f"{rejected} of {len(seeds)} cases were too ill-conditioned to compare"
