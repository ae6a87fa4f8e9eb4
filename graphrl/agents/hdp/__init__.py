"""HDP: devices by groups of ops, learned on the graph at hand (Mirhoseini et al., "A Hierarchical Model for Device
Placement", 2018), as TensorFlow's grappler has it. GO and GDP are measured against it.
"""
