"""A fake Gurobi program."""

import sys

_SCRIPT = """#!{python}
import re, sys
values, every, printed, status, too_late = {what!r}
arguments = dict(each.split("=", 1) for each in sys.argv[1:] if "=" in each)
if arguments or not too_late:
    print(printed, end="")
    if status:
        sys.exit(status)
if not arguments or values is None and every is None:
    sys.exit()
if values is None:
    names = re.findall(r"\\bx[0-9]+\\b", open(sys.argv[-1]).read())
    values = dict.fromkeys(names, every)
with open(arguments["ResultFile"], "w") as file:
    file.write("# Objective value = 0\\n")
    file.writelines(f"{{name}} {{value}}\\n" for name, value in values.items())
"""


def install_gurobi(folder, values=None, every=None, printed="", status=0, too_late=False):
    """Write a ``gurobi_cl`` that answers with values by name, or with one for every variable.

    Parameters
    ----------
    printed : str
        Text to print; with a status other than 0 the program then ends.
    too_late : bool
        Whether it prints the text only when it has a model to solve.
    """
    path = folder / "gurobi_cl"
    what = (values, every, printed, status, too_late)
    path.write_text(_SCRIPT.format(python=sys.executable, what=what))
    path.chmod(0o755)
