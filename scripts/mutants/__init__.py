"""Breaks the package on purpose, one rule at a time, and looks whether the tests notice.

    python -m scripts.mutants             all suites, two mutants at a time
    python -m scripts.mutants lua         all scripts; `lua:delivery/claim` is one of them
    python -m scripts.mutants --sample 40 --seed 1 backoff
    python -m scripts.mutants --only NAME --list

A mutant is a file of the package, a text in it, what stands there instead, and the tests that should catch it. They
are generated: every small change that operators.py knows of the modules in modules.py, and lua_operators.py of the
scripts. Only the defects that the product's ancestors had are listed by hand (known_defects.py). A mutant is applied to
a copy of the package in a temporary folder, which comes before the installed one on PYTHONPATH; the tests are those of
the tree.

- First the tests run once with the package as it is: what fails then would have caught everything. What they reach of
  a Python module is recorded, so that a generated mutant meets only tests that reach its lines.
- A text that is not there, or more than once, is an error of the list: nothing is run then. So is an argument for a
  mutant that is not there.
- A mutant that survives is a hole in the tests, or is argued (in its list; in argued.toml): it changes nothing that
  anybody may rely on. A mutant that never ends is caught.
- A mutant that does not load says nothing about the tests. It is counted apart, and in a list it is an error as well.
"""
