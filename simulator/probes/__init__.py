"""`dtsim measure`: micro-benchmarks that run on the user's own machine and write what `dtsim calibrate` reads.

    torch_device.py   what there is to measure, and a clock for it
    kernels.py        products, attention, kernels that only move bytes      -> gemm.csv, attention.csv, memory.csv
    collectives.py    nccl-tests where it is installed, else torch.distributed -> nccl_*.txt
    overlap.py        a product beside copies, and with fewer multiprocessors  -> overlap.csv
    machine.py        the machine as data files, so that it can be predicted   -> hardware_specs/

torch is imported only inside functions; it comes with the extra `measure`.  The way through a processor (gloo, two processes)
is tested whole; the way through GPUs is complete but has not met one yet: only its tables, from recorded output, are tested.
"""
