"""CP-SAT (Google OR-Tools): exact search for makespan and peak memory, with a proven bound.

`solver` is the method, `makespan` and `memory` what it models, `clock` and `placement` the variables that both are made
of, `engine` the one door to OR-Tools, `quanta` and `reference` the way from plans to integers and back.
"""
