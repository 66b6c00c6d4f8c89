"""What all tests share: nothing is written to the user's own data folder."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_data_folder(tmp_path_factory):
    """Tests keep profiles, reference models and measurements in a folder that goes with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHIPWISE_HOME", str(tmp_path_factory.mktemp("home")))
        yield
