"""How the broker connects to PostgreSQL."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from daypass_broker import db

URL = "postgresql+psycopg://u@127.0.0.1:1/d"


@pytest.mark.parametrize("in_file", [False, True])
def test_a_server_that_is_gone_without_a_word_is_noticed(tmp_path: Path, in_file: bool) -> None:
    """Every connection asks whether the server is there still, and is given up within seconds."""
    file, seen = tmp_path / "url", dict[str, Any]()
    file.write_text(URL)
    engine = db.connect(URL, file=file if in_file else None)

    @event.listens_for(engine, "do_connect")
    def note(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        seen.update(parameters)

    with pytest.raises(db.StoreUnavailable), db.read(engine):
        pass
    idle, between = seen["keepalives_idle"], seen["keepalives_interval"]
    assert idle + between * seen["keepalives_count"] <= 15
    assert seen["tcp_user_timeout"] <= 15_000
