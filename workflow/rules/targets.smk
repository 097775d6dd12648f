"""Names that no other rule knows."""


def suggest(wildcards):
    """Input function of the rule for names that no other rule knows."""
    known = [rule.name for rule in workflow.rules if rule.name != "unknown_target"]
    raise SystemExit(
        f"sigprop: {wildcards.unknown!r} is no target{nearest(wildcards.unknown, known)}; "
        "`snakemake --list` shows all"
    )


rule unknown_target:
    """Catches a misspelt target, to name the nearest one."""
    input:
        suggest,
    output:
        "{unknown}",
    log:
        f"{RESULTS}/logs/{{unknown}}.log",
    conda:
        "../../envs/sigprop.yaml"
    shell:
        "false"


localrules:
    unknown_target,
