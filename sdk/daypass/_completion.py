"""Shell completion, generated from the argument parser itself, so it cannot lag behind it.

`daypass completion bash` prints a script; the three shells get the same table: for each command
path the words that may follow it.
"""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")


def words(parser: argparse.ArgumentParser, path: str = "") -> dict[str, list[str]]:
    """For each command path ("", "sandbox", "sandbox create") the words that may follow it."""
    found: dict[str, list[str]] = {}
    here: list[str] = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                here.append(name)
                found.update(words(inner, f"{path} {name}".strip()))
        elif action.option_strings:
            here += [option for option in action.option_strings if option.startswith("--")]
        elif action.choices:
            here += [str(choice) for choice in action.choices]
    return {path: here, **found}


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script for one of `SHELLS`."""
    table = words(parser)
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](table)


_WALK = """\
  local path="" word i
  for ((i = {first}; i < {current}; i++)); do
    word="{word}"
    case "$word" in
      -*) continue ;;
    esac
    case "${{path:+$path }}$word" in
      {paths}) path="${{path:+$path }}$word" ;;
    esac
  done
  local words=""
  case "$path" in
{cases}
  esac"""


def _body(table: dict[str, list[str]], **places: str) -> str:
    paths = "|".join(f'"{path}"' for path in table if path)
    cases = "\n".join(f'    "{path}") words="{" ".join(w)}" ;;' for path, w in table.items())
    return _WALK.format(paths=paths, cases=cases, **places)


def _bash(table: dict[str, list[str]]) -> str:
    body = _body(table, first="1", current="COMP_CWORD", word="${COMP_WORDS[i]}")
    return f"""# daypass completion for bash: eval "$(daypass completion bash)"
_daypass() {{
{body}
  local started="${{COMP_WORDS[COMP_CWORD]}}"
  COMPREPLY=($(compgen -W "$words" -- "$started"))
  if [[ ${{#COMPREPLY[@]}} -eq 0 ]]; then COMPREPLY=($(compgen -f -- "$started")); fi
}}
complete -F _daypass daypass
"""


def _zsh(table: dict[str, list[str]]) -> str:
    # zsh has its own array called words, so ours is renamed; its arrays start at 1.
    body = _body(table, first="2", current="CURRENT", word="${words[i]}")
    body = body.replace("local words=", "local follow=").replace(') words="', ') follow="')
    return f"""#compdef daypass
# daypass completion for zsh: eval "$(daypass completion zsh)"
_daypass() {{
{body}
  compadd -- ${{=follow}} || _files
}}
if [[ "$funcstack[1]" = _daypass ]]; then _daypass "$@"; else compdef _daypass daypass; fi
"""


def _fish(table: dict[str, list[str]]) -> str:
    lines = ["# daypass completion for fish: daypass completion fish | source"]
    for path, following in table.items():
        parts = path.split()
        seen = " ".join(f"; and __fish_seen_subcommand_from {part}" for part in parts)
        commands = [word for word in following if not word.startswith("--")]
        # A path is complete once none of the words that lead further has been given.
        unseen = f"; and not __fish_seen_subcommand_from {' '.join(commands)}" if commands else ""
        condition = f"true{seen}{unseen}"
        for word in following:
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c daypass -n '{condition}' {what}")
    return "\n".join(lines) + "\n"
