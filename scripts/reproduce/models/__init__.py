"""The models that the tables are of, each written once; the scripts choose sizes.

- losses.py: a loss whose layers a rule can wrap, and its training step; images.py, language.py (sequences too): losses;
- steps.py: training steps, of agents too, and the like that are no such loss;
- go_layers.py, go_images.py, go_sequences.py: the training steps that GO places;
- zoo.py, keras.py: the architectures of the zoo; programs.py makes programs of them.
"""
