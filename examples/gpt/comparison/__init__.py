"""What compare.py does: a study of many trainings, from its description to its report.

study.py (the description) → cells.py (what is to be trained) → sweep.py (which learning rates) → runner.py and
training.py (processes) → results.py (rows) → summary.py and intervals.py → figures.py → report.py.
"""
