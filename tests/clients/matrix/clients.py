"""Every client of the matrix: `CLIENTS`. A new one is an entry in the file of its family."""

from tests.clients.matrix import (
    agent_clients,
    chat_clients,
    python_clients,
    typescript_clients,
)

CLIENTS = (
    *python_clients.CLIENTS,
    *typescript_clients.CLIENTS,
    *agent_clients.CLIENTS,
    *chat_clients.CLIENTS,
)
