"""Orders of the ops of one device, for peak memory: compilers' rules, plain traversals, random orders, exact search."""
