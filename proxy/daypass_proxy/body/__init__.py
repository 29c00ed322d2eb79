"""A request body: strict JSON or refused (`strict`), and how many bytes are held of it (`room`).

`outline` and `lookalikes` are what `strict` and the dialects look with; a large body lies in a
`spool`, where a process of `checkers` can look at it.
"""
