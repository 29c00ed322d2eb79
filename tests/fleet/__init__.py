"""The fleet test: three proxies, two brokers, PostgreSQL and OpenBao as processes, on bad days.

`make test-fleet` runs `python -m tests.fleet`. Each fault (`faults`) strikes a `cell` of processes
under a steady `load` of streams; a `provider` keeps what it billed, and `truth` compares that with
the books. What comes out is one line of a table each, held against the bounds of the fault.
"""
