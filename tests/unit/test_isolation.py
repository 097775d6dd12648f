"""A figure depends on the repository alone, whatever the user's own settings say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

LOOK = """
import json, os
import matplotlib
from sigprop.figures import style
style.use()
seen = {key: str(value) for key, value in matplotlib.rcParams.items() if key != "backend"}
startup = "hostile" in globals()
"""
WRITE = "json.dump([seen, startup], open(output, 'w'))"


@pytest.mark.slow
def test_settings_of_the_user_change_nothing_in_a_kernel(tmp_path: Path, checkout: Path) -> None:
    parameters = nbformat.v4.new_code_cell('output = ""', metadata={"tags": ["parameters"]})
    cells = [parameters, nbformat.v4.new_code_cell(LOOK), nbformat.v4.new_code_cell(WRITE)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "look.ipynb")

    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("hostile = True\n")
    rc = tmp_path / "matplotlibrc"
    rc.write_text("axes.facecolor: red\nfont.size: 31\nlines.dashed_pattern: 9, 9\n")
    plain = {k: v for k, v in os.environ.items() if k not in ("MATPLOTLIBRC", "IPYTHONDIR")}
    plain["PYTHONPATH"] = str(checkout / "workflow")
    hostile = plain | {"MATPLOTLIBRC": str(rc), "IPYTHONDIR": str(tmp_path / "ipython")}
    hostile["MPLBACKEND"] = "svg"

    found = []
    for name, environment in (("plain", plain), ("hostile", hostile)):
        folder = tmp_path / name
        folder.mkdir()
        drawn = folder / "drawn.json"
        arguments = ["--parameters", json.dumps({"output": str(drawn)}), "--figures", str(drawn)]
        for option, file in (
            ("--log", "log.ipynb"),
            ("--executed", "run.ipynb"),
            ("--html", "run.html"),
            ("--sidecar", "run.json"),
        ):
            arguments += [option, str(folder / file)]
        command = [sys.executable, "-m", "sigprop", "draw", str(tmp_path / "look.ipynb")]
        subprocess.run([*command, *arguments], env=environment, check=True, cwd=tmp_path)
        found.append(json.loads(drawn.read_text()))
    assert found[0] == found[1]
    assert found[1][1] is False and found[1][0]["axes.facecolor"] == "white"
