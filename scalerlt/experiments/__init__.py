"""One module per experiment: each composes parts of the other packages and holds no numerics."""
