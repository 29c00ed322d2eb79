# What a proxy needs of OpenBao or Vault: to read its provider keys, and nothing else.
#
# For keys at vault://secret/llm/{tenant}#api_key; change mount and path to yours. A "+" stands for
# one whole segment: with keys at secret/llm/anthropic/acme write secret/data/llm/+/+. It may neither
# list keys, see their metadata, nor write them.
path "secret/data/llm/+" {
  capabilities = ["read"]
}

# How long its own token lives: for the metric daypass_vault_token_seconds, and to tell after a 403 a
# token that has ended from a path that is forbidden. Not needed to read keys.
path "auth/token/lookup-self" {
  capabilities = ["read"]
}
