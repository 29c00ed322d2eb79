"""The run: targets take turns at each case, A B C, C B A, so that a busy minute hits all alike."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.cases import WITH_DIRECT, Case
from bench.install import say
from bench.load import Figures, Load, measure
from bench.peers import Target
from bench.results import Book, Row, combine
from bench.site import Site
from bench.targets import direct


class Run:
    """One run on one site; every ratio is made from rows of one run."""

    def __init__(
        self, site: Site, program: Path, book: Book, rounds: int, *, hurried: bool = False
    ) -> None:
        self.site, self.program, self.book, self.rounds = site, program, book, rounds
        self._hurried = hurried

    def measure(self, load: Load, target: Target) -> Figures:
        """One load on one target."""
        return measure(self.program, load, target.port, target.headers, target.pid)

    def case(self, case: Case, targets: Sequence[Target]) -> None:
        """Run one case on every target that takes part; write its rows down."""
        taking_part = [target for target in targets if target.name not in case.without]
        if case.name in WITH_DIRECT:
            taking_part.append(direct(self.site))
        rounds = self.rounds if self._hurried else min(self.rounds, case.rounds)
        say(f"{case.name}: {len(taking_part)} targets, {rounds} rounds")
        seen: dict[str, list[Figures]] = {target.name: [] for target in taking_part}
        for number in range(rounds):
            for target in taking_part[:: -1 if number % 2 else 1]:
                warm = 0 if number else target.warm
                load = case.load(self.site.bodies, slow=target.slow, warm=warm)
                if self._hurried:
                    load = replace(load, seconds=load.seconds * 0.6, warm=load.warm * 0.5)
                seen[target.name].append(self.measure(load, target))
        for target in taking_part:
            row = Row(case.name, target.name, target.version, target.does)
            self.book.add(combine(row, seen[target.name]))
