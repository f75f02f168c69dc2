"""Breaks the package on purpose, one rule at a time, and looks whether the tests notice.

    python -m scripts.mutants             all suites, two mutants at a time
    python -m scripts.mutants lua         one suite
    python -m scripts.mutants --only NAME --list

A mutant is a line of a list (lua.py, backoff.py): a file of the package, a text that occurs in it exactly once, what
stands there instead, the rule that this breaks and the tests that should catch it. It is applied to a copy of the
package in a temporary folder, which comes before the installed one on PYTHONPATH; the tests are those of the tree.

- First the tests run once with the package as it is: what fails then would have caught everything.
- A text that is not there, or more than once, is an error of the list: nothing is run then.
- A mutant that survives is a hole in the tests, or is argued in the list: it changes nothing that anybody may rely on.
- A mutant that does not load says nothing about the tests; it is counted apart, and an error as well.
"""
