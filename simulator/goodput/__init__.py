"""From a step to a run: failures, checkpoints, slow parts, spares, time lost, money and energy.

job --facts--> RunModel --readable (SimPy) or sampled (compiled)--> Runs --study--> Goodput -> report, picture, levers
"""
