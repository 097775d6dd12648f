"""Experiments: one simulation and, where there is theory, one theory table per block."""

for name, made in CONFIG.experiments.items():
    pieces = parts_of(name)

    if pieces:

        rule:
            name:
                f"part_{name}"
            output:
                table=f"{RESULTS}/data/parts/{name}/{{i}}-of-{len(pieces)}.parquet",
                sidecar=f"{RESULTS}/data/parts/{name}/{{i}}-of-{len(pieces)}.json",
            log:
                f"{RESULTS}/logs/part_{name}_{{i}}.log",
            benchmark:
                f"{RESULTS}/benchmarks/part_{name}_{{i}}.tsv"
            wildcard_constraints:
                i=r"\d+",
            conda:
                "../../envs/sigprop.yaml"
            threads: 1
            resources:
                mem_mb=2000,
                runtime=720,
                gpu=1 if on_gpu() else 0,
            params:
                code=code_of(made.simulation, made.design),
                table=name,
                settings=settings(name),
                preset=CONFIG.preset,
                seed=CONFIG.seed,
                device=CONFIG.device,
                of=len(pieces),
                checkpoints=f"{RESULTS}/checkpoints/{name}",
            shell:
                "python -m sigprop run {params.table} --part {wildcards.i}/{params.of}"
                " --preset {params.preset} --settings {params.settings:q} --seed {params.seed}"
                " --device {params.device} --threads {threads}"
                " --checkpoints {params.checkpoints:q} --output {output.table:q} 2> {log:q}"

    rule:
        name:
            f"simulate_{name}"
        input:
            parts=pieces,
        output:
            table=f"{RESULTS}/data/{name}.parquet",
            sidecar=f"{RESULTS}/data/{name}.json",
        log:
            f"{RESULTS}/logs/simulate_{name}.log",
        benchmark:
            f"{RESULTS}/benchmarks/simulate_{name}.tsv"
        conda:
            "../../envs/sigprop.yaml"
        threads: 1
        resources:
            mem_mb=2000,
            runtime=720 if made.TRAINS else 60,
            # Two trainings never share a card; profiles say how many cards there are.
            gpu=1 if made.TRAINS and on_gpu() and not pieces else 0,
        params:
            code=code_of(made.simulation, made.design),
            table=name,
            settings=settings(name),
            preset=CONFIG.preset,
            seed=CONFIG.seed,
            device=CONFIG.device,
            # Not an output: it outlives a kill, and the training goes on from there.
            checkpoints=(
                f"--checkpoints {RESULTS}/checkpoints/{name}"
                if made.TRAINS and not pieces
                else ""
            ),
            join="--join" if pieces else "",
        shell:
            "python -m sigprop run {params.table} --kind simulation --preset {params.preset}"
            " --settings {params.settings:q} --seed {params.seed} --device {params.device}"
            " --threads {threads} {params.checkpoints} {params.join} {input.parts:q}"
            " --output {output.table:q} 2> {log:q}"

    if made.theory:

        rule:
            name:
                f"theory_{name}"
            input:
                simulation=(
                    f"{RESULTS}/data/{name}.parquet"
                    if made.THEORY_READS_SIMULATION
                    else []
                ),
            output:
                table=f"{RESULTS}/data/{name}_theory.parquet",
                sidecar=f"{RESULTS}/data/{name}_theory.json",
            log:
                f"{RESULTS}/logs/theory_{name}.log",
            benchmark:
                f"{RESULTS}/benchmarks/theory_{name}.tsv"
            conda:
                "../../envs/sigprop.yaml"
            threads: 1
            resources:
                mem_mb=1000,
                runtime=10,
            params:
                code=code_of(made.theory),
                table=name,
                settings=settings(name),
                preset=CONFIG.preset,
            shell:
                "python -m sigprop run {params.table} --kind theory --preset {params.preset}"
                " --settings {params.settings:q} --simulation {input.simulation:q}"
                " --output {output.table:q} 2> {log:q}"


rule schemes:
    """The scheme records that the models are built from, for the block diagram."""
    output:
        f"{RESULTS}/data/schemes.json",
    log:
        f"{RESULTS}/logs/schemes.log",
    benchmark:
        f"{RESULTS}/benchmarks/schemes.tsv"
    conda:
        "../../envs/sigprop.yaml"
    params:
        code=code_of("sigprop.models.schemes"),
        records=repr(dict(SCHEMES)),
    shell:
        "python -m sigprop list schemes --output {output:q} 2> {log:q}"
