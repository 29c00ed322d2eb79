"""The database's URL in a setting or a file."""

from pathlib import Path

import pytest

from daypass_core import database_url
from daypass_core.settings import Reader, SettingsError

URL = "postgresql://u:hunter2@h/d"
NAME, FILE = "DAYPASS_DATABASE_URL", "DAYPASS_DATABASE_URL_FILE"


def check(value: str) -> str:
    """Take PostgreSQL alone."""
    if not value.startswith("postgresql://"):
        raise ValueError("must be postgresql://…")
    return value


def problem(environ: dict[str, str]) -> str:
    """Return what is wrong with the settings."""
    reader = Reader(environ)
    assert database_url.read(reader, check) in ("", URL)
    with pytest.raises(SettingsError) as error:
        reader.done()
    return str(error.value)


def test_a_file_instead_of_the_setting(tmp_path: Path) -> None:
    """The one line of the file is taken as the setting would be; a final newline does not count."""
    (tmp_path / "url").write_text(f"{URL}\n")
    for environ in ({NAME: URL}, {FILE: str(tmp_path / "url")}):
        reader = Reader(environ)
        assert database_url.read(reader, check) == URL
        reader.done()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "must be the only line of it"),
        (f"{URL}\n{URL}".encode(), "must be the only line of it"),
        (b"\xff\xfe", "must be text"),
        (b"mysql://u:hunter2@h/d", "must be postgresql://"),
    ],
)
def test_a_file_that_will_not_do(tmp_path: Path, content: bytes | None, said: str) -> None:
    """It is named with what is wrong, and nothing of what it holds is repeated."""
    if content is not None:
        (tmp_path / "url").write_bytes(content)
    told = problem({FILE: str(tmp_path / "url")})
    assert f"{FILE}: the file's URL {said}" in told
    assert "hunter2" not in told


def test_one_of_the_two(tmp_path: Path) -> None:
    """Both are a contradiction, whatever they say; neither is reported as the setting that is."""
    (tmp_path / "url").write_text(URL)
    assert f"{FILE}: is set and {NAME} is too" in problem({NAME: URL, FILE: str(tmp_path / "url")})
    assert f"{NAME}: is not set" in problem({})
