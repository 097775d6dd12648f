"""A user's own sentences: snakemake translate --config sentences=my.de table=translation_ours"""

import re

# `my.de` becomes translations/my.de.txt.
TRANSLATED = re.sub(r"[^\w.-]", "_", Path(CONFIG.sentences or "sentences").name)


rule translate:
    """Translate `sentences` with the best run of `table`; not part of `all`."""
    input:
        unpack(to_translate),
    output:
        f"{RESULTS}/translations/{TRANSLATED}.txt",
    log:
        f"{RESULTS}/logs/translate.log",
    benchmark:
        f"{RESULTS}/benchmarks/translate.tsv"
    conda:
        "../../envs/sigprop.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        code=code_of("sigprop.cli.translate"),
    shell:
        "python -m sigprop translate {input.model:q} {input.sentences:q} --threads {threads}"
        " --output {output:q} 2> {log:q}"
