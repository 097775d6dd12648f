"""Which tables claims read, taken from their source: rules are parsed without numpy or pandas."""

import ast
from pathlib import Path


def claim_tables() -> list[str]:
    """Names of the tables of all claims, sorted: what each `@claim(...)` says as `tables=`."""
    files = Path(__file__).parent.glob("*/*.py")
    nodes = (node for f in files for node in ast.walk(ast.parse(f.read_text(encoding="utf-8"))))
    claims = (n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "claim")
    words = (word for call in claims for word in call.keywords if word.arg == "tables")
    return sorted({table for word in words for table in ast.literal_eval(word.value)})
