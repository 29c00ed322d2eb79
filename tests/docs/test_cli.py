"""docs/reference/cli.md describes every command with exactly the flags that it has."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from daypass._parser import build_parser
from daypass_broker.__main__ import _parser as broker_parser

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
BROKER_FLAGS = "Takes the [broker flags](#broker-flags)."


def leaves(
    parser: argparse.ArgumentParser, path: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run, by its whole name."""
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not inner or (parser.get_default("act") and path != "daypass"):
        yield path, parser
    for action in inner:
        for name, child in action.choices.items():
            yield from leaves(child, f"{path} {name}")


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """The flags of a command as its usage shows them, such as `--limit N`."""
    found = set()
    for action in parser._actions:
        if not action.option_strings or action.dest == "help":
            continue
        shown = max(action.option_strings, key=len)
        if action.nargs != 0:
            choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else None
            shown += f" {action.metavar or choices or action.dest.upper()}"
        found.add(shown)
    return found


def section(heading: str) -> str:
    """The text below one heading."""
    return PAGE.partition(f"\n{heading}\n")[2].partition("\n##")[0]


def documented(text: str) -> set[str]:
    """The flags in the table of one section."""
    return set(re.findall(r"^\| `(--.+?)` \|", text, re.MULTILINE))


COMMANDS = dict(leaves(build_parser(), "daypass"))
SHARED = documented(section("## Broker flags"))


def test_every_command_has_its_section() -> None:
    """The page has a section for each command and for nothing else."""
    assert set(re.findall(r"^### `(daypass .+)`$", PAGE, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_are_those_of_the_parser(command: str) -> None:
    """A section lists the flags of its command, and shows the command in an example."""
    text, has = section(f"### `{command}`"), flags(COMMANDS[command])
    asks = has >= SHARED
    assert (BROKER_FLAGS in text) == asks
    assert documented(text) == (has - SHARED if asks else has)
    (example,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert command in example


def test_the_commands_of_the_broker_are_listed() -> None:
    """Each command of `python -m daypass_broker` is named, with its flags."""
    for command, parser in leaves(broker_parser(), "python -m daypass_broker"):
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{command}"))
        names = {flag.partition(" ")[0] for flag in flags(parser)}
        assert names == set(re.findall(r"`(--[a-z-]+)`", row)), command
