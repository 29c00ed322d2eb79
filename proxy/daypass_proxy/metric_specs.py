"""Every metric of the proxy: its name, what it means, its labels and buckets.

The grammar of the names stands in `daypass_core.metrics`; docs/reference/metrics.md lists the same
metrics, and a test compares. `metrics` counts what happens, `gauges` reads what is.
Names, units and buckets of the `gen_ai_…` metrics are those of OpenTelemetry's GenAI conventions.
"""

from daypass_core.metrics import Kind, Spec

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_OPERATION = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
_SECONDS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_TOKENS = tuple(float(4**power) for power in range(14))
_OWN = (
    0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 1.0,
)  # fmt: skip
_BATCH = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

# -- what calls did

REQUEST_DURATION = Spec(
    _HISTOGRAM,
    "gen_ai_server_request_duration_seconds",
    "Time of an admitted call, from its head to the end of its answer.",
    (*_OPERATION, "error_type"),
    _SECONDS,
)
TIME_TO_FIRST_TOKEN = Spec(
    _HISTOGRAM,
    "gen_ai_server_time_to_first_token_seconds",
    "Time from the head of a streaming call to the first byte of its answer.",
    _OPERATION,
    _FIRST_TOKEN,
)
OPERATION_DURATION = Spec(
    _HISTOGRAM,
    "gen_ai_client_operation_duration_seconds",
    "Time of a call at the provider, from its first byte up to the end of the answer.",
    (*_OPERATION, "error_type"),
    _SECONDS,
)
TOKEN_USAGE = Spec(
    _HISTOGRAM,
    "gen_ai_client_token_usage",
    "Tokens of a call as booked; input includes what was written to and read from the cache.",
    (*_OPERATION, "gen_ai_token_type"),
    _TOKENS,
)
CACHE_TOKENS = Spec(
    _COUNTER,
    "daypass_cache_tokens_total",
    "The part of the input tokens that was written to or read from the provider's cache.",
    ("gen_ai_request_model", "direction"),
)
COST = Spec(
    _COUNTER,
    "daypass_cost_nano_usd_total",
    "What calls cost, in nano-dollars; estimated where the provider did not say.",
    ("tenant", "estimated"),
)
ESTIMATED = Spec(
    _COUNTER,
    "daypass_estimated_calls_total",
    "Calls that were booked with a part of the bill estimated, by how they ended.",
    ("outcome",),
)
HOLDS_REFUSED = Spec(
    _COUNTER,
    "daypass_holds_refused_total",
    "Reservations that the ledger refused, by the limit in the way and the kind of refusal.",
    ("limit", "reason"),
)
HOLD_EXTENSIONS = Spec(
    _COUNTER,
    "daypass_hold_extensions_total",
    "Times that a stream asked to hold more, by the answer; one refused is asked for in parts.",
    ("result",),
)
DRAINED_CALLS = Spec(
    _COUNTER,
    "daypass_drained_calls_total",
    "Calls that were read on after their client had gone, by whether the bill came to be known.",
    ("result",),
)
DRAINED_TOKENS = Spec(
    _COUNTER,
    "daypass_drained_tokens_total",
    "Output tokens, at least, that came after the client had gone.",
)
CALLS = Spec(
    _COUNTER,
    "daypass_calls_total",
    "Calls to the inference endpoints that ended, by how they ended.",
    ("endpoint", "outcome"),
)
REFUSALS = Spec(
    _COUNTER,
    "daypass_refusals_total",
    "Requests that were answered with a problem of ours, by its code.",
    ("code",),
)
CUT_CALLS = Spec(
    _COUNTER,
    "daypass_calls_cut_total",
    "Admitted calls that were ended from our side, or by a client that left, by the reason.",
    ("reason",),
)
UPSTREAM_FAILURES = Spec(
    _COUNTER,
    "daypass_upstream_failures_total",
    "Calls that failed at the provider or on the way: a status of its, or a word of ours.",
    ("kind",),
)
ADDED = Spec(
    _HISTOGRAM,
    "daypass_added_seconds",
    "Time between the head of a call and its first byte upstream, without waiting for its body.",
    (),
    _OWN,
)
BODY_BYTES = Spec(
    _COUNTER,
    "daypass_body_bytes_total",
    "Bytes of the bodies of admitted calls and of their relayed answers.",
    ("direction",),
)
REQUESTS = Spec(
    _COUNTER,
    "daypass_requests_total",
    "Requests other than inference calls and probes, by route and status.",
    ("route", "status"),
)

# -- what is, read at scrape time

OPEN_CALLS = Spec(_GAUGE, "daypass_open_calls", "Admitted calls that are open.")
BODY_ROOM = Spec(
    _GAUGE, "daypass_body_room_bytes", "Bytes promised to the request bodies of calls under way."
)
VIEW_AGE = Spec(
    _GAUGE,
    "daypass_revocation_view_age_seconds",
    "Seconds since the store last answered the revocation view.",
)
VIEW_VERSION = Spec(
    _GAUGE,
    "daypass_revocation_view_version",
    "Version of the revocations in force here; proxies of one store should agree.",
)
TOKEN_CHECKS = Spec(
    _COUNTER,
    "daypass_token_checks_total",
    "Credentials looked at: known from before, verified now, or refused now.",
    ("result",),
)
KEY_SET_AGE = Spec(
    _GAUGE, "daypass_key_set_age_seconds", "Age of the broker's verification keys in use."
)
KEY_SET_READS = Spec(
    _COUNTER,
    "daypass_key_set_reads_total",
    "Attempts to fetch the broker's verification keys.",
    ("result",),
)
PROVIDER_KEY_AGE = Spec(
    _GAUGE,
    "daypass_provider_key_age_seconds",
    "Age of the provider key that was confirmed longest ago; calls are refused after 900.",
)
PROVIDER_KEY_READ_AGE = Spec(
    _GAUGE,
    "daypass_provider_key_read_age_seconds",
    "Seconds since a provider key was last read; its calls are refused after 900.",
    ("key",),
)
PROVIDER_KEYS = Spec(
    _GAUGE,
    "daypass_provider_keys",
    "Provider keys in use here, by whether they could be read of late.",
    ("state",),
)
VAULT_TOKEN = Spec(
    _GAUGE, "daypass_vault_token_seconds", "Seconds until the token for the vault ends."
)
VAULT_LOGINS = Spec(
    _COUNTER, "daypass_vault_logins_total", "Logins at the vault, by how they ended.", ("result",)
)
PROVIDER_KEY_READS = Spec(
    _COUNTER,
    "daypass_provider_key_reads_total",
    "Attempts to read a provider key from where it lives.",
    ("result",),
)
POOL_REQUESTS = Spec(
    _COUNTER,
    "daypass_pool_requests_total",
    "Requests that went up with a key of a pool.",
    ("gen_ai_provider_name", "key"),
)
POOL_COOLDOWNS = Spec(
    _COUNTER,
    "daypass_pool_cooldowns_total",
    "Times that a key of a pool began to cool down, by the cause.",
    ("gen_ai_provider_name", "key", "cause"),
)
POOL_FAILOVERS = Spec(
    _COUNTER,
    "daypass_pool_failovers_total",
    "Calls that went on with another key of the pool, by the key that they left.",
    ("gen_ai_provider_name", "key"),
)
LEDGER_READY = Spec(_GAUGE, "daypass_ledger_ready", "1 while the ledger can write, else 0.")
LEDGER_WAITING = Spec(
    _GAUGE, "daypass_ledger_waiting", "Operations that wait for the ledger's next transaction."
)
LEDGER_ADMISSION = Spec(
    _HISTOGRAM,
    "daypass_ledger_admission_seconds",
    "Time a call waited for its reservation, until it was durable or refused.",
    (),
    _OWN,
)
LEDGER_COMMIT = Spec(
    _HISTOGRAM,
    "daypass_ledger_commit_seconds",
    "Time of one of the ledger's transactions.",
    (),
    _OWN,
)
LEDGER_BATCH = Spec(
    _HISTOGRAM,
    "daypass_ledger_batch_operations",
    "Operations that shared one of the ledger's transactions.",
    (),
    _BATCH,
)
CALL_LIMIT = Spec(
    _GAUGE,
    "daypass_call_limit",
    "Calls in flight from which new ones are turned away; it falls while the loop is late.",
)
REQUESTS_IN_FLIGHT = Spec(
    _GAUGE, "daypass_requests_in_flight", "Requests that are being served, of every kind."
)
CALLS_SHED = Spec(
    _COUNTER,
    "daypass_calls_shed_total",
    "Calls that were turned away before anything was done for them, by the reason.",
    ("reason",),
)
LOOP_LAG = Spec(
    _GAUGE,
    "daypass_event_loop_lag_seconds",
    "The longest time by which the event loop was late within the last 15 to 30 seconds.",
)
BODY_WORKERS = Spec(_GAUGE, "daypass_body_workers", "Processes that check large bodies and are up.")
BODY_CHECK_BYTES = Spec(
    _GAUGE,
    "daypass_body_check_bytes",
    "Bytes of large bodies that are being checked or wait for it.",
)
CERTIFICATE_END = Spec(
    _GAUGE,
    "daypass_certificate_end_timestamp_seconds",
    "When the certificate of the public listener ends; nothing without TLS.",
)
LOOP_TASKS = Spec(
    _GAUGE,
    "daypass_event_loop_tasks",
    "Tasks of the event loop; a few for each open connection, and none for one that has ended.",
)
LOG_LINES_DROPPED = Spec(
    _COUNTER,
    "daypass_log_lines_dropped_total",
    "Log lines lost because nobody read them in time or they could not be written.",
)
BUILD_INFO = Spec(_GAUGE, "daypass_build_info", "Always 1; the labels say what runs.", ("version",))

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Spec))
