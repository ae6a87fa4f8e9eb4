"""EGRL: evolution and policy gradient together place tensors in the memories of a chip (Khadka et al., ICLR 2021)."""
