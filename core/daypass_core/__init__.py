"""What broker and proxy share: claims, verification, secrets, settings, errors."""
