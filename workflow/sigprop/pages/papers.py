"""The papers by the name that the index gives them, and the words of a figure for a report."""

from sigprop.artifacts.provenance import code_root
from sigprop.experiments.index import Figure
from sigprop.pages import text

PAPERS = {
    "noci2022": (
        "Noci et al. 2022",
        "Signal Propagation in Transformers: Theoretical Perspectives and the Role of Rank "
        "Collapse. arXiv 2206.03126",
    ),
    "cowsik2024": (
        "Cowsik et al. 2024",
        "Geometric Dynamics of Signal Propagation Predict Trainability of Transformers. "
        "arXiv 2403.02579",
    ),
    "extensions": ("Extensions", "Figures of our own, which neither paper has."),
}


def report_caption(figure: Figure) -> str:
    """Title, caption, what the paper shows and what differs, as reStructuredText."""
    paragraphs = [
        f"**{figure.item}: {figure.title}**",
        *text.caption(code_root() / figure.notebook),
    ]
    if figure.paper_shows:
        paragraphs.append(f"*The paper shows.* {figure.paper_shows}")
    if figure.differs:
        paragraphs.append(f"*What differs here.* {figure.differs}")
    return "\n\n".join(map(text.rst, paragraphs))
