"""Evolution and policy gradient that help one another (EGRL, algorithm 2; CERL, Khadka et al. 2019).

A population of networks and of Boltzmann chromosomes plays; all that it does goes into one replay; learners are trained
on that by SAC, play too, and migrate into the population. A generation is one pure function of a state, for any domain
and networks: `search.generation`; `on_mesh` of mesh.py compiles it for several devices.
"""
