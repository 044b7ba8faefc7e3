"""What the tests of links share."""

import pytest
from errors import Problem
from links import joined


@pytest.fixture(scope="session")
def throttled_links() -> None:
    """Skips where network namespaces cannot be made, or links not be throttled."""
    try:
        with joined(1) as links:
            links.throttle(1e8)
    except Problem as problem:
        pytest.skip(str(problem))
