"""Benchmarks: what each scheduling strategy gains on real simulator steps, measured side by side.

Nothing imports this package. `python -m bench --help` explains every command; the parts are
`cases` (what is measured), `arms` (how it is run), `measure` (how it is timed), `result` (the
JSON), `table` and `plot` (how it is shown).
"""
