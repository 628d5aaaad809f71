"""Programs of environments that have what Treadle's own must not have."""

from pathlib import Path

import pytest

from tests.environments import ROOT, environment, project


@pytest.fixture(scope="session")
def litellm_bin() -> Path:
    """The programs of an environment with the current litellm and this package."""
    return environment(
        "litellm-and-treadle", ["-e", str(ROOT), "litellm"], stale_with=project()["dependencies"]
    )
