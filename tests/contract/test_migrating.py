"""Migrating a SQLite file that somebody else is writing at the same moment."""

import sqlite3
import threading
from pathlib import Path

import daypass_migrations


def test_an_upgrade_waits_for_a_writer_of_the_new_file(tmp_path: Path) -> None:
    """SQLite: a file somebody else has just begun to write is waited for, not refused."""
    path = tmp_path / "new.db"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.3, writer.rollback)
    done.start()
    daypass_migrations.upgrade(f"sqlite:///{path}")
    done.join()
    writer.close()
    assert daypass_migrations.current(f"sqlite:///{path}") == daypass_migrations.HEAD
