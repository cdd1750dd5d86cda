"""Which plan: the best of a stated space, with a proof, and why the others lost.

space      which fields may take which values, one plan per combination
point      one plan: what it would be (refused, a bound), and what `simulate()` says of it
strategies who decides which plans are simulated, one file each; each says what it proves
answer     the best plans, what became of all others, and the trade-offs between time, memory and price
"""
