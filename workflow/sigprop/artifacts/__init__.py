"""Tables and their sidecars: atomic writes, schema checks, provenance, seeds, progress."""
