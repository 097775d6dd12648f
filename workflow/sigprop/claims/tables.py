"""Which tables claims read, taken from their source: rules are parsed without numpy or pandas."""

import ast
from pathlib import Path


def claim_tables() -> list[str]:
    """Names of the tables of all claims, sorted: the fifth field of each `Claim(...)`."""
    found: set[str] = set()
    for file in Path(__file__).parent.glob("*2*.py"):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        named = {
            name.id: value
            for node in body
            if isinstance(node, ast.Assign)
            for target in node.targets
            for name, value in _pairs(target, node.value)
        }
        for node in ast.walk(ast.Module(body, [])):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Claim":
                field = node.args[4]
                field = named[field.id] if isinstance(field, ast.Name) else field
                assert isinstance(field, ast.Tuple)
                items = (named[e.id] if isinstance(e, ast.Name) else e for e in field.elts)
                found |= {str(ast.literal_eval(item)) for item in items}
    return sorted(found)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.Name, ast.expr]]:
    """Names and what they are set to: `A = x`, or `A, B = x, y`."""
    if isinstance(target, ast.Name):
        return [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return [
            (name, one)
            for name, one in zip(target.elts, value.elts, strict=True)
            if isinstance(name, ast.Name)
        ]
    return []
