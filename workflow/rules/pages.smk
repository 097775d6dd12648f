"""The pages over everything that a preset made."""

from sigprop.pages.graph import declared


rule pages:
    """index.html and pages/: gallery, figures, claims, rules and cost."""
    input:
        figures=figure_outputs(FIGURES),
        tables=[
            f"{RESULTS}/data/{part}.json"
            for table in CONFIG.experiments
            for part in parts(table)
            if any(table in figure.tables for figure in FIGURES)
        ],
        claims=f"{RESULTS}/claims/claims.json",
        notebooks=[figure.notebook for figure in FIGURES],
        index="config/figures.yaml",
        templates=[
            os.path.relpath(path)
            for path in sorted(
                Path(workflow.basedir, "workflow/sigprop/pages/templates").iterdir()
            )
        ],
    output:
        index=f"{RESULTS}/index.html",
        pages=directory(f"{RESULTS}/pages"),
    log:
        f"{RESULTS}/logs/pages.log",
    benchmark:
        f"{RESULTS}/benchmarks/pages.tsv"
    conda:
        "../../envs/sigprop.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        code=code_of("sigprop.pages.commands"),
        preset=CONFIG.preset,
        results=lambda wildcards, output: str(Path(output.index).parent),
        rules=lambda wildcards: json.dumps(declared(workflow.rules), sort_keys=True),
    shell:
        "python -m sigprop pages --preset {params.preset} --results {params.results:q}"
        " --rules {params.rules:q} > {log:q} 2>&1"
