"""Which values a gradient keeps, computes again and moves.

level.py: what there is to decide about; price.py: what a choice costs.
"""
