"""One cell of the matrix: a client in a scenario, through us or directly. `visit` gives a `Cell`.

What is counted was seen by a tap in front of the client; what is judged is what its user sees.
"""

import itertools
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.clients.matrix.client import Client, Ended, Errand, run
from tests.clients.matrix.figures import FIGURES
from tests.clients.matrix.provider import BUSY, BUSY_MAIN, SAYS
from tests.clients.matrix.scenarios import Scenario
from tests.clients.matrix.tap import Asked, Tap
from tests.clients.matrix.world import DIRECT_KEY, World

LATE = 60.0
"""Seconds after a client's first request that figures are of; one that goes on must end itself."""
_VOLATILE = re.compile(
    r"cell-[0-9]+-|127\.0\.0\.1:[0-9]+|/\S*/cell-\S*|\b[0-9a-f]{8}-[0-9a-f-]{27}\b"
    r"|(?:req|ses|msg|sbx)_[A-Za-z0-9]+|[0-9]+(?:\.[0-9]+)?(?:ms|s)\b|[0-9]{4}-[0-9]{2}-[0-9]{2}\S*"
    r"|\x1b\[[0-9;?]*[A-Za-z]"
)
numbers = itertools.count(1)


@dataclass(frozen=True)
class Cell:
    """What a client did.

    `requests` are those for a model's words, `times` their seconds after the first one, `others`
    all the rest by method and path. `statuses` are of all, in order. `code` is None if it had to
    be ended.
    """

    client: str
    scenario: str
    direct: bool
    requests: int
    times: list[float]
    others: list[str]
    statuses: list[int]
    code: int | None
    answered: bool
    sentence: bool
    seconds: float
    text: str
    tail: str

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def late(self) -> int:
        """How many of its requests came after LATE."""
        return sum(each > LATE for each in self.times)

    @property
    def alike(self) -> tuple[object, ...]:
        """What must be the same with and without us."""
        return self.requests, self.others, self.code, self.text


def visit(world: World, client: Client, scenario: Scenario, *, direct: bool = False) -> Cell:
    """Send a client on its errand, wait for its end, and say what it did."""
    mark = f"cell-{next(numbers)}-"
    target = world.provider.port if direct else world.stack.proxy_port
    # A client may leave something behind that still writes there.
    folder = tempfile.TemporaryDirectory(prefix=mark, ignore_cleanup_errors=True)
    with folder as scratch, Tap(target) as tap:
        errand = _errand(world, scenario, mark, Path(scratch), tap.url, direct)
        twice = scenario.fault == BUSY and client.asks > 1
        world.provider.faults[mark] = BUSY_MAIN if twice else scenario.fault
        ended = run(client.start(errand), errand.folder)
    return _cell(client, scenario, direct, list(tap.asked), ended)


def _errand(
    world: World, scenario: Scenario, mark: str, folder: Path, url: str, direct: bool
) -> Errand:
    if direct:
        credential, token = "not a credential", DIRECT_KEY
        variables = {
            "ANTHROPIC_FEDERATION_RULE_ID": "rule",
            "ANTHROPIC_ORGANIZATION_ID": "00000000-0000-0000-0000-000000000000",
        }
    else:
        sandbox, token = scenario.prepare(world, mark)
        credential, variables = sandbox["launch"]["credential"], dict(sandbox["environment"])
    launch = folder / "launch.jwt"
    launch.write_text(credential)
    places = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_IDENTITY_TOKEN_FILE": str(launch)}
    openai_url = f"{url}/v1" if direct else f"{url}/openai/v1"
    prompt = f"{mark} Say hi."
    return Errand(url, openai_url, token, prompt, scenario.mode, folder, variables | places)


def _cell(
    client: Client, scenario: Scenario, direct: bool, asked: list[Asked], ended: Ended
) -> Cell:
    calls = [each for each in asked if each.inference]
    others = sorted(f"{each.method} {each.path}" for each in asked if not each.inference)
    said = ended.out + ended.err
    return Cell(
        client=client.name,
        scenario=scenario.name,
        direct=direct,
        requests=len(calls),
        times=[round(each.at - calls[0].at, 1) for each in calls],
        # The prefix of a provider is ours.
        others=[each.replace("/openai/v1", "/v1") for each in others],
        statuses=[each.status for each in asked],
        code=ended.code,
        answered=SAYS in ended.out,
        sentence=bool(scenario.shown) and scenario.shown in " ".join(said.split()),
        seconds=round(ended.seconds, 1),
        text=_VOLATILE.sub("…", ended.out).strip(),
        tail=said[-1500:],
    )


def faults(client: Client, scenario: Scenario, cell: Cell, bare: Cell | None) -> list[str]:
    """What is wrong with a cell, in words; `bare` is the same without us, where there is one."""
    found = []
    if bare is not None and cell.alike != bare.alike:
        found.append(f"not as without us: {cell.alike} instead of {bare.alike}")
    if scenario.figure:
        most = FIGURES[client.figures][scenario.figure] + client.asks - 1
        if cell.requests - cell.late > most:
            found.append(f"{cell.requests} requests, at most {most} are known of it")
    if not cell.requests and not cell.statuses:
        found.append("never asked")
    if cell.late and cell.code is None:
        found.append(f"{cell.late} requests after {LATE:.0f} s, and goes on")
    if scenario.alike and not scenario.figure and not cell.answered:
        found.append("no answer")
    return found
