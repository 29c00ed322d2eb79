"""The demo's middle: answers, their price, a refusal, the search for the key, a new proxy."""

from __future__ import annotations

import secrets
import sys

from demo.agents import Answer
from demo.books import Booked, last_call
from demo.layout import INSIDE
from demo.search import Findings, Search, search_processes
from demo.services.up import DaypassUp
from demo.world import Tenant, World, expect

QUESTION = "Why is the sea salty? Answer in two short sentences."
OTHER_QUESTION = "Name three birds."
ANSWER_TOKENS = 60
SHORT_TOKENS = 16
FOREIGN_MODEL = "claude-opus-4-5"
DECOY_PLACES = {"command line", "environment", "memory", "file"}


def ask(world: World, tenant: Tenant, question: str, max_tokens: int) -> Answer:
    """One whole answer, shown as it comes in; StepFailed when it is an error."""
    answer = tenant.agent.ask(
        question, max_tokens=max_tokens, listen=lambda so_far: world.terminal.note(so_far.text)
    )
    expect(answer.error is None, f"the client says {answer.error}: {answer.reason}")
    expect(answer.pieces > 1, f"the answer came in {answer.pieces} pieces, not as a stream")
    return answer


def stream_an_answer(world: World) -> None:
    """A first answer, and what was booked for it."""
    acme = world.tenants["acme"]
    answer = ask(world, acme, QUESTION, ANSWER_TOKENS)
    world.terminal.say(f"“{' '.join(answer.text.split())}”")
    row = last_call(acme.broker, acme.sandbox.id)
    booked = Booked.of(row)
    said = answer.usage
    expect(
        (booked.input_tokens, booked.output_tokens)
        == (said["input_tokens"], said["output_tokens"]),
        f"booked {booked}, but the client was told {said}",
    )
    expect(booked.cost_usd > 0, "the call was booked at no cost")
    world.terminal.say(f"Booked to acme: {booked.in_words()}.")


def serve_another_tenant(world: World) -> None:
    """A second tenant with a key of its own, which does not see the first one's usage."""
    globex = world.tenants["globex"]
    ask(world, globex, OTHER_QUESTION, SHORT_TOKENS)
    seen = globex.broker.usage()["rows"]
    expect({row["tenant"] for row in seen} == {"globex"}, f"globex sees usage of others: {seen}")
    world.terminal.say(f"Booked to globex: {Booked.of(seen[0]).in_words()}.")


def search_the_cells(world: World) -> None:
    """Everything both cells hold, looked through for both keys; a decoy shows that it works."""
    planted, hidden = secrets.token_urlsafe(36), secrets.token_urlsafe(36)
    wanted = {f"key of {name}": key for name, key in world.keys.items()}
    wanted |= {"decoy": planted, "hidden decoy": hidden}
    plant(world.tenants["acme"], planted, hidden)
    for tenant in world.tenants.values():
        found = search(world, tenant, wanted)
        hits = [hit for hit in found.hits if "decoy" not in hit.secret]
        expect(not hits, f"in the cell of {tenant.name}: {hits}")
        world.terminal.say(
            f"{tenant.name}: command lines, environment and {found.memory_bytes >> 20} MiB of"
            f" memory of {found.processes} processes, and every file that is new or writable"
            f" ({found.files}): 0 hits."
        )
        if tenant.name == "acme":
            places = found.places("decoy")
            expect(places >= DECOY_PLACES, f"the decoy was found only in {places}")
            expect("memory" in found.places("hidden decoy"), "the hidden decoy was not found")
    world.terminal.say(
        "A decoy planted in the first cell was found in its environment, command line, memory"
        " and files, so the search would have seen the key."
    )


def plant(tenant: Tenant, planted: str, hidden: str) -> None:
    """A process in the cell that holds the decoys."""
    place = "/tmp/notes.txt" if tenant.cell.kind.sealed else str(tenant.door / "notes.txt")
    words = [sys.executable, str(INSIDE / "decoy.py"), planted, place]
    decoy = tenant.cell.start(words, {"NOTE": planted})
    decoy.stdin.write(f"{hidden[::-1]}\n")
    decoy.stdin.flush()
    expect(decoy.stdout.readline() == "planted\n", "the decoy could not be planted")


def search(world: World, tenant: Tenant, wanted: dict[str, str]) -> Findings:
    """The whole of a tenant's cell; without namespaces its processes and its own folder."""
    cell = tenant.cell
    root = f"/proc/{cell.init_pid}/root" if cell.kind.sealed else str(tenant.door)
    return search_processes(cell.pids(), wanted, newer_than=world.started, root=root)


def search_what_was_written(world: World) -> None:
    """Every file the servers have left so far: logs, the database, configuration."""
    wanted = Search({f"key of {name}": key for name, key in world.keys.items()})
    for path in world.directory.rglob("*"):
        if path.is_file():
            wanted.file(str(path), str(path))
    expect(not wanted.findings.hits, f"found: {wanted.findings.hits}")
    world.terminal.say(f"{wanted.findings.files} files, logs and database among them: 0 hits.")


def ask_for_a_foreign_model(world: World) -> None:
    """A model outside the sandbox's scope: refused in the provider's own form, and not billed."""
    acme, before = world.tenants["acme"], world.llm.counters()
    answer = acme.agent.ask("hello", max_tokens=SHORT_TOKENS, model=FOREIGN_MODEL)
    expect(answer.error == "BadRequestError", f"the client says {answer.error or 'nothing'}")
    expect(FOREIGN_MODEL in answer.reason, f"the refusal does not name the model: {answer.reason}")
    expect(world.llm.counters() == before, "the refused call reached the LLM")
    world.terminal.say(f"{answer.status} {answer.error}: {answer.reason}")


def restart_the_proxy(world: World) -> None:
    """The proxy is killed and started anew; the same client goes on as if nothing had been."""
    world.up.kill_proxy()
    world.up = world.keep(DaypassUp.start(world.up_settings))
    acme = world.tenants["acme"]
    answer = ask(world, acme, OTHER_QUESTION, SHORT_TOKENS)
    world.terminal.say(
        f"Killed, started anew over the same state, and asked by the same client: “"
        f"{' '.join(answer.text.split())}”"
    )
