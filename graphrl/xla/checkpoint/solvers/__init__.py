"""Which values a gradient keeps, computes again and moves.

level.py: what there is to decide about; choice.py, price.py: choices and what they cost; goal.py: what is wanted.
auto.py: all solvers by name; starts.py, alike.py, state.py: what they have in common.
"""
