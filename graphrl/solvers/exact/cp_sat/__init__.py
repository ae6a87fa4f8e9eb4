"""CP-SAT (Google OR-Tools): exact search for makespan, peak memory and the largest load, with a proven bound.

`solver` is the method. `makespan` has the models of makespan and of peak memory, `load` that of the largest load.
`model` has the variables of these models and converts plans to them and back. `engine` is the only module that calls
OR-Tools, and converts seconds and bytes to integers.
"""
