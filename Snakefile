# sigprop: rebuild the figures, tables and claims of
#   Noci et al. 2022, arXiv 2206.03126, and Cowsik et al. 2024, arXiv 2403.02579.
#
#   snakemake --cores all                            everything, laptop preset
#   snakemake fig09 --cores 2                        one figure and what it needs
#   snakemake fig09 --cores 2 --force                that figure again
#   snakemake --cores all --config preset=smoke      another preset
from snakemake.utils import min_version

min_version("9.20")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


configfile: f"config/presets/{check_preset(config.get('preset'))}.yaml"


CONFIG = check_config(config)
RESULTS = f"results/{CONFIG.preset}"


wildcard_constraints:
    table="|".join(CONFIG.experiments),
    unknown="[A-Za-z0-9_-]+",


rule all:
    """Everything the preset can make."""
    default_target: True
    input:
        figure_outputs(FIGURES),
        f"{RESULTS}/claims/claims.json",
        f"{RESULTS}/index.html",


rule figures:
    """Every figure, without the claims."""
    input:
        figure_outputs(FIGURES),


rule noci2022:
    """Figures of Noci et al. 2022."""
    input:
        figure_outputs(figure for figure in FIGURES if figure.paper == "noci2022"),


rule cowsik2024:
    """Figures of Cowsik et al. 2024."""
    input:
        figure_outputs(figure for figure in FIGURES if figure.paper == "cowsik2024"),


rule extensions:
    """Figures of our own."""
    input:
        figure_outputs(figure for figure in FIGURES if figure.paper == "extensions"),


localrules:
    all,
    figures,
    noci2022,
    cowsik2024,
    extensions,


include: "workflow/rules/experiments.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/pages.smk"
include: "workflow/rules/translate.smk"
include: "workflow/rules/targets.smk"
