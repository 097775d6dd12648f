"""One rule per figure, named by its id, made from config/figures.yaml."""

from sigprop.pages.papers import PAPERS, report_caption

# For the captions of `snakemake --report`. Not under `params:`, so that words redraw nothing.
config["captions"] = {figure.id: report_caption(figure) for figure in FIGURES}


# Places in the palette of the schemes that have one.
COLOURS = {
    name: each.colour for name, each in SCHEMES.items() if each.colour is not None
}


def in_report(path, figure):
    """An output of a figure's rule, marked for `snakemake --report`."""
    return report(
        path,
        caption="../report/figure.rst",
        category=PAPERS[figure.paper][0],
        subcategory=figure.item,
        labels={"figure": figure.title, "format": path.rpartition(".")[2]},
    )


for figure in FIGURES:

    rule:
        name:
            figure.id
        input:
            notebook=figure.notebook,
            tables=list(tables_of(figure).values()),
        output:
            pdf=in_report(f"{RESULTS}/figures/{figure.id}.pdf", figure),
            png=in_report(f"{RESULTS}/figures/{figure.id}.png", figure),
            sidecar=f"{RESULTS}/figures/{figure.id}.json",
            executed=f"{RESULTS}/notebooks/{figure.id}.ipynb",
            html=in_report(f"{RESULTS}/notebooks/{figure.id}.html", figure),
            also=[
                in_report(f"{RESULTS}/figures/{figure.id}.{suffix}", figure)
                for suffix in figure.also
            ],
        log:
            f"{RESULTS}/logs/{figure.id}.log",
        benchmark:
            f"{RESULTS}/benchmarks/{figure.id}.tsv"
        conda:
            "../../envs/sigprop.yaml"
        threads: 1
        resources:
            mem_mb=1000,
            runtime=10,
        params:
            code=code_of(figure.notebook),
            schemes=schemes_of(*figure.tables),
            colours=COLOURS if schemes_of(*figure.tables) else {},
            # Not under `log:`, whose contents a failing job prints; kept all the same.
            run=f"{RESULTS}/logs/{figure.id}.ipynb",
            parameters=json.dumps(
                {
                    "tables": tables_of(figure),
                    "output": f"{RESULTS}/figures/{figure.id}",
                    "preset": CONFIG.preset,
                    "scaled_down": scaled_down(CONFIG, figure.tables),
                },
                sort_keys=True,
            ),
            parquet=[
                path
                for path in tables_of(figure).values()
                if path.endswith(".parquet")
            ],
        shell:
            "python -m sigprop draw {input.notebook:q} --parameters {params.parameters:q}"
            " --log {params.run:q} --executed {output.executed:q} --html {output.html:q}"
            " --sidecar {output.sidecar:q} --tables {params.parquet:q}"
            " --figures {output.pdf:q} {output.png:q} {output.also:q} 2> {log:q}"
