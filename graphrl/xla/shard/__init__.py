"""`graphrl.shard`: splits a function over the devices of a mesh, by a plan for all of its equations.

strategies.py lists the ways to run an equation on several devices; program.py makes a sharding problem of a function;
function.py solves it and builds the function with its shardings.
"""
