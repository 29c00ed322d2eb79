"""No client library at all: a prompt in, a completion out, by the scope's default model."""

from daypass import LLMProxyClient

print(LLMProxyClient().call("Say hi."))
