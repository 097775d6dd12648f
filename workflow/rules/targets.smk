"""Names that no other rule knows."""


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
