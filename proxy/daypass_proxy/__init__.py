"""The credential proxy: checks, injects the key, forwards, meters."""
