"""How the tensors of a layer lie on the ranks that share it, and the collectives that follow.

    layout.py         which dimension lies on which mesh axis; the placement and the local size of a tensor
    redistribute.py   (placement held, placement wanted) -> collective
    propagate.py      placements of an operation's operands and result, forward and backward
    halos.py          rows at borders, which neighbours send each other
    strategies/       ways to lay a layer out, one file each

Everything here is a plain function of names and sizes: no kernels, no bytes per second, no plan.
"""
