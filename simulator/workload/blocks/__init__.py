"""Blocks of layers, one file each: they add the operations of a norm, an MLP, an attention, ... to a `LayerBuilder`."""
