"""The processes that check large bodies, so that the event loop goes on meanwhile.

`pool` holds them and the queue in front, `turns` says whose body is next, `worker` is what runs.
"""
