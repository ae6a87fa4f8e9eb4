"""Models of all tables, each defined once; the scripts choose sizes.

- losses.py: a loss whose layers a rule can wrap, and its training step; images.py, language.py (sequences too): losses;
- steps.py: training steps, including agents and samplers, that are not such losses;
- go_layers.py, go_images.py, go_sequences.py: the training steps that GO places;
- zoo.py, keras.py: the architectures of the zoo; programs.py turns them into programs.
"""
