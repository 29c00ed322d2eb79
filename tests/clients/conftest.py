"""What begins with the first test of this folder, because it takes minutes and hardly any work."""

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.clients.lives import Lives


@pytest.fixture(scope="session", autouse=True)
def begun_lives(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Future[Lives]]:
    """Clients that live on beside the other tests, if any test of this run is about them.

    That they could not be started is for those tests to tell, not for all of this folder.
    """
    begun: Future[Lives] = Future()
    lives = Lives(tmp_path_factory.mktemp("lives"))
    if any(item.path.name == "test_token_lives.py" for item in request.session.items):
        try:
            lives.begin()
            begun.set_result(lives)
        except Exception as error:
            begun.set_exception(error)
    yield begun
    lives.end()
