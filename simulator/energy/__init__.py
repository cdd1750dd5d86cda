"""Electricity of a step: watts of GPUs from what their streams do, of machines and of the facility around them."""
