"""The tables as a whole, and how the store is reached."""

from pathlib import Path

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db, schema
from daypass_migrations.__main__ import main
from tests.unit.broker.desk import Desk

PASSWORD = "hunter2"


def test_no_column_could_hold_a_token() -> None:
    """No column is named for a secret; what is kept of a credential is a hash."""
    names = {column.name for table in schema.metadata.tables.values() for column in table.columns}
    for word in ("secret", "private", "password", "jwt", "api_key", "prompt", "body"):
        assert not [name for name in names if word in name], word


def test_money_and_time_are_64_bits() -> None:
    """Every amount, moment and counter is a BIGINT."""
    for table in schema.metadata.tables.values():
        for column in table.columns:
            if column.name.endswith(("_nano", "_at", "_s", "_tokens", "_until")):
                assert isinstance(column.type, sa.BigInteger), f"{table}.{column.name}"


def test_what_is_pruned_is_found_by_an_index() -> None:
    """Deleting one sandbox, or one grant, reads none of the others: every column that refers to
    one has an index that it begins. On SQLite nobody else may write meanwhile."""
    refers = {(schema.account, "sandbox"), (schema.usage, "sandbox")}
    for table in schema.metadata.tables.values():
        for key in table.foreign_keys:
            if key.column.table in (schema.sandbox, schema.grant_):
                refers.add((table, key.parent.name))
    for table, name in refers:
        assert name in {next(iter(index.columns)).name for index in table.indexes}, (table, name)


def test_every_connection_is_prepared(desk: Desk) -> None:
    """WAL, FULL, a busy timeout and foreign keys hold on every SQLite connection, not the first."""
    with db.read(desk.engine) as one, db.read(desk.engine) as other:
        for conn in (one, other):
            found = [
                conn.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
            ]
            assert found == ["wal", 2, 5000, 1]


def test_a_write_excludes_other_writers_from_its_start(desk: Desk) -> None:
    """BEGIN IMMEDIATE: a second writer cannot start while the first has not ended, readers can."""
    other = db.connect(desk.url)
    with db.read(other) as conn:
        conn.exec_driver_sql("PRAGMA busy_timeout = 0")

    def write() -> None:
        with db.begin(other):
            pass

    with db.begin(desk.engine):
        with db.read(other) as conn:
            assert conn.execute(sa.select(schema.tenant)).all()
        with pytest.raises(db.StoreUnavailable):
            write()
    write()
    other.dispose()


@pytest.mark.parametrize(
    "url", ["sqlite:////nowhere/at/all.db", "postgresql+psycopg://u@/d?host=/nowhere"]
)
def test_a_store_that_is_gone_is_one_error(url: str) -> None:
    """Whatever the driver raises for a store that is not there is StoreUnavailable."""
    engine = db.connect(url)
    with pytest.raises(db.StoreUnavailable), db.begin(engine):
        pass
    with pytest.raises(db.StoreUnavailable), db.read(engine):
        pass


@pytest.mark.parametrize(
    "url",
    [
        *("", PASSWORD, "sqlite://", "sqlite:///:memory:", f"mysql://u:{PASSWORD}@h/d", "://"),
        f"postgresql://u@h:{PASSWORD}/d",
    ],
)
def test_a_url_we_do_not_serve_is_refused_without_repeating_it(url: str) -> None:
    """Both the broker and the migrations refuse it in one sentence that shows no password."""
    for connect in (db.connect, daypass_migrations.upgrade, daypass_migrations.current):
        with pytest.raises(
            ValueError, match=r"^(must be|names no file: write) sqlite:////absolute/path"
        ) as error:
            connect(url)
        assert PASSWORD not in str(error.value)


def test_json_columns_are_canonical() -> None:
    """Equal values are written as equal text, whatever their order."""
    assert db.to_json({"b": [1, "ü"], "a": None}) == db.to_json({"a": None, "b": [1, "ü"]})
    assert db.from_json(db.to_json({"b": [1, "ü"]})) == {"b": [1, "ü"]}


def test_the_database_file_is_its_owner_s(tmp_path: Path) -> None:
    """`upgrade` makes the file, and what SQLite puts beside it, unreadable by others."""
    path = tmp_path / "100% new.db"
    daypass_migrations.upgrade(f"sqlite:///{path}")
    assert path.stat().st_mode & 0o077 == 0


def test_the_program_upgrades_and_says_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`current` prints none and exits 3 until `upgrade` has run; it makes no file."""
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert main(["current", "--database-url", url]) == 3
    assert not (tmp_path / "new.db").exists()
    assert main(["upgrade", "--database-url", url]) == 0
    assert main(["current", "--database-url", url]) == 0
    assert capsys.readouterr().out.split() == [
        "none",
        daypass_migrations.HEAD,
        daypass_migrations.HEAD,
    ]


def test_the_program_fails_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """A database that cannot be reached is exit status 1 and no traceback, and no password."""
    url = f"postgresql://u:{PASSWORD}@127.0.0.1:1/d"
    assert main(["upgrade", "--database-url", url]) == 1
    assert main(["upgrade", "--database-url", "nonsense"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 2
    assert PASSWORD not in said
