"""The token broker: says who may have what, signs, revokes, remembers."""
