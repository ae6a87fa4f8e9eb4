"""CP-SAT (Google OR-Tools): exact search for makespan, peak memory and the largest load, with a proven bound.

`solver` is the method. `makespan`, `memory` and `load` have the models of makespan, of memory and of the largest load.
`model` has the variables of these models and converts plans to them and back. `engine` is the only module that calls
OR-Tools, and converts seconds and bytes to integers.
"""
