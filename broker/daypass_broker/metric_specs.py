"""Every metric of the broker: its name, what it means, its labels and buckets.

The grammar of the names stands in `daypass_core.metrics`; docs/reference/metrics.md lists the same
metrics, and a test compares. `metrics` counts what happens, `census` and `gauges` read what is.
"""

from daypass_core.metrics import Kind, Spec

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIGNING = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)

# -- what requests did

TOKEN_REQUESTS = Spec(
    _COUNTER,
    "daypass_broker_token_requests_total",
    "Token requests, by grant type and by what was answered.",
    ("grant_type", "outcome"),
)
TOKEN_SECONDS = Spec(
    _HISTOGRAM,
    "daypass_broker_token_seconds",
    "Time of a token request, from its head to its answer.",
    (),
    _SECONDS,
)
TOKEN_REFUSALS = Spec(
    _COUNTER,
    "daypass_broker_token_refusals_total",
    "Token requests that were refused, by the reason that the log line has too.",
    ("reason",),
)
SIGNING = Spec(
    _HISTOGRAM,
    "daypass_broker_signing_seconds",
    "Time of one signature, by what was signed.",
    ("purpose",),
    _SIGNING,
)
ADMIN_REQUESTS = Spec(
    _COUNTER,
    "daypass_broker_admin_requests_total",
    "Requests to the admin listener, by method, route and status.",
    ("method", "route", "status"),
)
ADMIN_SECONDS = Spec(
    _HISTOGRAM,
    "daypass_broker_admin_seconds",
    "Time of a request to the admin listener.",
    (),
    _SECONDS,
)
WEBHOOKS = Spec(
    _COUNTER,
    "daypass_broker_webhooks_total",
    "Webhooks of sandbox vendors, by what came of them.",
    ("vendor", "effect"),
)

# -- what is, read at scrape time

STORE_AGE = Spec(
    _GAUGE,
    "daypass_broker_store_age_seconds",
    "Seconds since the database last answered; it is asked every five seconds.",
)
KEY_AGE = Spec(
    _GAUGE,
    "daypass_broker_signing_key_age_seconds",
    "Seconds since the signing key in use became active.",
    ("purpose",),
)
KEY_USABLE = Spec(
    _GAUGE,
    "daypass_broker_signing_key_usable",
    "1 while this broker has a key to sign with, else 0.",
    ("purpose",),
)
CERTIFICATE_END = Spec(
    _GAUGE,
    "daypass_broker_certificate_end_timestamp_seconds",
    "When the certificate of the admin listener ends; nothing without TLS.",
)
LOG_LINES_DROPPED = Spec(
    _COUNTER,
    "daypass_broker_log_lines_dropped_total",
    "Log lines lost because nobody read them in time or they could not be written.",
)
BUILD_INFO = Spec(
    _GAUGE, "daypass_broker_build_info", "Always 1; the labels say what runs.", ("version",)
)

# -- what stands in the database, counted every 30 seconds

SANDBOXES = Spec(
    _GAUGE,
    "daypass_broker_sandboxes",
    "Sandboxes that have not ended, by their state.",
    ("state",),
)
REVOCATIONS = Spec(
    _GAUGE,
    "daypass_broker_revocations",
    "Revocations in force; every proxy holds them all in memory.",
)
REVOCATION_VERSION = Spec(
    _GAUGE,
    "daypass_broker_revocation_version",
    "Version of the revocations on record; proxies should have the same.",
)
AUDIT_EVENTS = Spec(
    _COUNTER,
    "daypass_broker_audit_events_total",
    "Number of the newest event of the audit trail, of all brokers together.",
)
AUDIT_UNSEALED = Spec(
    _GAUGE,
    "daypass_broker_audit_unsealed_seconds",
    "Age of the oldest audit event that is in no head of the hash chain yet; 0 without one.",
)
HELD = Spec(
    _GAUGE,
    "daypass_broker_held_nano_usd",
    "Nano-dollars that are held for calls under way, of all tenants.",
)
OVERDRAFT = Spec(
    _GAUGE,
    "daypass_broker_overdraft_nano_usd",
    "Nano-dollars by which tenants' bills went beyond what was held for the calls.",
)
OPEN_CALLS = Spec(
    _GAUGE,
    "daypass_broker_open_calls",
    "Calls that are open in the ledger, of all proxies.",
)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Spec))
