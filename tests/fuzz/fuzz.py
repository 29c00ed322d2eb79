"""Drives one target by coverage (atheris, libFuzzer): `python -m tests.fuzz.fuzz TARGET [OPTION…]`.

Options are libFuzzer's, as in `-max_total_time=60 FOLDER`. A failing input is left in the current
folder as `crash-…`; once its cause is mended it belongs into `corpus/TARGET`, which every run and
`test_fuzz` start from.
"""

import sys

import atheris


def main() -> None:
    """Run until the options' bounds; exit status 77 on a failing input."""
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["daypass_core", "daypass_proxy"]):
        from tests.fuzz.targets import TARGETS
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
