"""The migrations of a release that does not exist yet: ours and one more, run by another process.

So the present release can be watched while, and after, its successor migrates.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import daypass_migrations

NEXT = f"{int(daypass_migrations.HEAD) + 1:04d}"

_MIGRATION = """
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None
readable_from = "{readable_from}"


def upgrade():
    for statement in '''{statements}'''.split(";"):
        op.get_bind().exec_driver_sql(statement)
"""


def migrate(folder: Path, owner_url: str, statements: str, *, readable_from: str) -> None:
    """Migrate a database as the next release would, with these statements and this marker."""
    package = Path(daypass_migrations.__file__).parent
    copy = folder / "next" / package.name
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, copy, ignore=ignore, dirs_exist_ok=True)
    text = (copy / "__init__.py").read_text(encoding="utf-8")
    there = f'HEAD = "{daypass_migrations.HEAD}"'
    assert text.count(there) == 1
    (copy / "__init__.py").write_text(text.replace(there, f'HEAD = "{NEXT}"'), encoding="utf-8")
    (copy / "versions" / f"v{NEXT}_next.py").write_text(
        _MIGRATION.format(
            revision=NEXT,
            before=daypass_migrations.HEAD,
            readable_from=readable_from,
            statements=statements,
        ),
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "daypass_migrations", "upgrade", "--database-url", owner_url],
        env={"PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, f"{NEXT}\n"), done.stderr
