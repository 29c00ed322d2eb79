"""The hash chain over the audit trail: what was told is not untold without anybody seeing it.

Every minute a broker takes the events that are new, adds each to a running SHA-256, and signs where
that stands: a head. Heads are rows of `audit_head` and lines of the log, so that a copy of them is
elsewhere. `links` says what is hashed and what is signed, `sealing` makes heads, `verify` compares
them with the events, and with what `kept` reads back from a log. docs/reference/audit.md says the
same to those who verify it with other means.
"""
