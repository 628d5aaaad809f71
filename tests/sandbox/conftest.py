"""What tests of containers have in common."""

import pytest

pytest.register_assert_rewrite("tests.sandbox.laboratory")
