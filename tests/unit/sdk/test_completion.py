"""Completion: the scripts are what their shells can read, and offer what the parser knows."""

import re
import subprocess

import pytest

from daypass.__main__ import main
from daypass._completion import SHELLS, script, words
from daypass._parser import build_parser


def complete(*typed: str) -> set[str]:
    """What bash offers after these words."""
    lines = [
        script("bash", build_parser()),
        f"COMP_WORDS=({' '.join(repr(word) for word in typed)})",
        f"COMP_CWORD={len(typed) - 1}",
        "_daypass",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(
        ["bash", "-euc", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


ACTIONS = {"create", "activate", "list", "show", "limits", "heartbeat", "end", "restore", "launch"}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("daypass", "sa"), {"sandbox"}),
        (("daypass", "sandbox", ""), {"--help", *ACTIONS}),
        (("daypass", "sandbox", "create", "--bu"), {"--budget"}),
        (("daypass", "--version", "sandbox", "lis"), {"list"}),
        (("daypass", "completion", ""), {"--help", *SHELLS}),
        (("daypass", "revoke", "--al"), {"--all"}),
        (("daypass", "ledger", "v"), {"verify"}),
        (("daypass", "sandbox", "limits", "sbx_a", "--drain-t"), {"--drain-tokens"}),
        (("daypass", "usage", "--by", "model", "--cs"), {"--csv"}),
    ],
)
def test_bash_offers_what_may_follow(typed: tuple[str, ...], offered: set[str]) -> None:
    """Commands, actions and options, by what has been typed so far."""
    assert complete(*typed) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_in_every_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The three scripts come from the parser, so none of them lacks a command."""
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "daypass completion" in text.partition("compdef")[2] or shell != "zsh"
    for path, following in words(build_parser()).items():
        for word in (*path.split(), *following):
            assert re.search(rf"(^|\W){re.escape(word.lstrip('-'))}(\W|$)", text, re.M), word


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_scripts_parse_as_shell(shell: str) -> None:
    """bash reads both: the zsh script keeps to what the two have in common."""
    text = script(shell, build_parser()).replace("${=follow}", "$follow")
    subprocess.run(["bash", "-n", "-c", text], check=True)


def test_fish_lines_are_complete_commands() -> None:
    """Each line is one `complete` with its condition in quotes."""
    lines = script("fish", build_parser()).splitlines()
    shape = re.compile(r"complete -c daypass -n '[a-z_; -]+' (-l [a-z-]+|-a [a-z]+)")
    assert len(lines) > 100
    assert [line for line in lines[1:] if not shape.fullmatch(line)] == []
