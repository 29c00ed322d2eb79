"""The fixtures of the SDK's unit tests, for those of its tests that start processes."""

from tests.unit.sdk.conftest import clean_environment, launch_file, server

__all__ = ["clean_environment", "launch_file", "server"]
