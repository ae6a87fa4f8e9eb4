"""EGRL: evolution and policy gradient for placing tensors in the memories of a chip (Khadka et al., ICLR 2021)."""
