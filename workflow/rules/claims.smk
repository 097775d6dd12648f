"""Verdicts on the papers' claims, from the tables."""

from sigprop.claims.tables import claim_tables


rule claims:
    """Every claim with its statistic, interval and verdict."""
    input:
        tables=[
            f"{RESULTS}/data/{part}.parquet"
            for table in claim_tables()
            for part in parts(table)
        ],
    output:
        json=f"{RESULTS}/claims/claims.json",
        markdown=f"{RESULTS}/claims/claims.md",
    log:
        f"{RESULTS}/logs/claims.log",
    benchmark:
        f"{RESULTS}/benchmarks/claims.tsv"
    conda:
        "../../envs/sigprop.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code_of("sigprop.claims.ledger"),
        schemes=schemes_of(*claim_tables()),
        preset=CONFIG.preset,
        # The verdicts name the figures of each claim.
        figures={figure.id: figure.claim_ids for figure in FIGURES},
        data=lambda wildcards, input: str(Path(input.tables[0]).parent),
        strict="--strict" if CONFIG.strict_claims else "",
        # Snakemake deletes the outputs of a job that fails; a strict one leaves its verdicts here.
        kept=f"{RESULTS}/logs/claims.md",
    shell:
        "python -m sigprop claims --evaluate --preset {params.preset} --data {params.data:q}"
        " --output {output.json:q} {params.strict} 2> {log:q}"
        " || {{ if [ -f {output.markdown:q} ]; then cp {output.markdown:q} {params.kept:q};"
        " echo 'all verdicts: {params.kept}' >> {log:q}; fi; exit 1; }}"
